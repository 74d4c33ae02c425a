"""The words of the system, as frozen dataclasses: what flows between the loop, the engines and the wire."""

import hashlib
import struct
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

STATE_CONVENTION = "states-v1"
"""Embedding and every block's output, the last one before the final norm; fp32 mean over the segment's own tokens,
delimiter included, every token fed: `[num_layers + 1, hidden_size]`."""

SURPRISAL_FEATURES = (
    "mean_log_probability", "min_log_probability", "sum_log_probability", "median_log_probability",
    "mean_entropy", "max_entropy", "argmax_share", "surprising_share", "min_margin", "num_tokens",
)  # fmt: skip
"""Statistics of the logits a read computes anyway, in this order: natural logarithms at temperature 1."""


class Writer(StrEnum):
    """Who wrote a piece of a context."""

    USER = "user"
    DRAFT = "draft"
    TARGET = "target"


class Segmentation(StrEnum):
    """Where a segment ends."""

    PARAGRAPH = "paragraph"
    """After `\\n\\n`."""
    SENTENCE = "sentence"
    """After sentence-ending `.`, `?` or `!`."""


class SegmentEnd(StrEnum):
    """Why a segment ended."""

    BOUNDARY = "boundary"
    EOS = "eos"
    LENGTH = "length"


class FinishReason(StrEnum):
    """Why a generation ended, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Piece:
    """Text with its writer's token ids. A reader with the same tokenizer takes the ids, any other the text."""

    text: str
    token_ids: tuple[int, ...]
    tokenizer: str
    """Fingerprint of the tokenizer the ids belong to."""


@dataclass(frozen=True, slots=True)
class Segment(Piece):
    """A piece a model wrote: reasoning up to a boundary, end-of-sequence, or a budget."""

    writer: Writer
    end: SegmentEnd


@dataclass(frozen=True, slots=True)
class Context:
    """Everything before the next segment: the rendered prompt, then the segments kept so far."""

    pieces: tuple[Piece, ...]

    def extended(self, *segments: Segment) -> "Context":
        return Context(self.pieces + segments)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 switch those filters off."""

    temperature: float = 0.6
    top_p: float = 0.95
    top_k: int = 0
    seed: int = 0
    """Names the stream of draws: token number t of a context is drawn with `uniform(seed, "token", t)`."""


@dataclass(frozen=True, slots=True)
class WriteOrder:
    """What to write after a context."""

    sampling: Sampling
    segmentation: Segmentation = Segmentation.PARAGRAPH
    max_segments: int = 1
    """0: until end-of-sequence or the token budget."""
    max_tokens: int = 1024
    """Budget of all segments together, end-of-sequence included."""
    max_segment_tokens: int = 512
    """A segment that finds no boundary by then ends all the same."""
    want_states: bool = False
    num_logprobs: int | None = None
    """How many likely alternatives to tell at each token; 0: the written tokens' own logprobs, None: not even these."""
    session: str = ""
    """A hint which cached prefix belongs to whom; never needed for a right answer."""


@dataclass(frozen=True, slots=True)
class States:
    """Pooled hidden states of one segment (`states-v1`): little-endian fp32, `[num_layers + 1, hidden_size]`."""

    data: bytes = field(repr=False)
    shape: tuple[int, int]
    model: str
    """Fingerprint of the model that felt them."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token and how likely its writer found it."""

    token_id: int
    data: bytes
    """Its text in UTF-8, empty for end-of-sequence; a character may be spread over several tokens."""
    logprob: float
    """Natural logarithm of its probability, at temperature 1 and over the whole vocabulary."""
    alternatives: tuple["TokenLogprob", ...] = ()
    """The likeliest tokens in its place, most likely first; it may be among them."""


@dataclass(frozen=True, slots=True)
class Written:
    """A segment fresh from its writer."""

    segment: Segment
    states: States | None
    duration_ms: float
    """Time the engine spent on this segment."""
    logprobs: tuple[TokenLogprob, ...] | None = None
    """One a token of the segment, if asked for."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What the target felt when reading one segment."""

    states: States
    surprisal: tuple[float, ...]
    """Aligned with `SURPRISAL_FEATURES`."""
    num_tokens: int
    duration_ms: float
    """Time of the forward, shared by all segments read in it."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verifier's view of one segment: the semantic probability of its meaning under each model, in [0, 1]."""

    draft_probability: float
    target_probability: float


@dataclass(frozen=True, slots=True)
class Distribution:
    """A sparse next-token distribution: the tokens that temperature, top-k and top-p leave, renormalised."""

    token_ids: bytes = field(repr=False)
    """Little-endian uint32, `[num_kept]`, ascending."""
    probabilities: bytes = field(repr=False)
    """Little-endian fp32, `[num_kept]`."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tokens a drafter proposes, each with the distribution it was drawn from."""

    token_ids: tuple[int, ...]
    distributions: tuple[Distribution, ...]
    tokenizer: str
    """Fingerprint of the tokenizer the ids belong to; the target must have the same."""
    duration_ms: float


@dataclass(frozen=True, slots=True)
class Verified:
    """What the target made of a proposal: the tokens it accepted and one of its own, cut into segments."""

    segments: tuple[Segment, ...]
    """Those that are whole now, the first begun by the open tokens of the call."""
    open_ids: tuple[int, ...]
    """Tokens of the segment that is not."""
    num_accepted: int
    """How many of the proposed tokens were kept."""
    duration_ms: float


@dataclass(frozen=True, slots=True)
class Reply:
    """What the target would say first when asked a question beside its work."""

    probabilities: tuple[float, ...]
    """Of each option, at temperature 1, over the whole vocabulary."""
    likeliest: str
    """Text of the most probable token, option or not."""
    duration_ms: float


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a text, and where in it."""

    id: int
    text: str
    start: int
    """Of its first character, counted in characters."""
    stop: int
    """Behind its last one."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


Strategy = Literal[
    "semantic", "auto", "semantic+token-level", "token-level", "spec-reason", "spec-thinking",
    "last-hidden", "surprisal", "random", "target", "draft",
]  # fmt: skip
AcceptanceRule = Literal["sample", "threshold"]
ScoreMethod = Literal["greedy", "average"]


@dataclass(frozen=True, slots=True)
class Acceptance:
    """When a drafted segment is kept, given `ratio` = target_probability / draft_probability.

    `sample` accepts with probability min(1, ratio) (SemanticSpec, Algorithm 1), `threshold` iff ratio >= threshold.
    """

    rule: AcceptanceRule = "sample"
    threshold: float = 0.5


@dataclass(frozen=True, slots=True)
class Scoring:
    """When `spec-reason` keeps a step: iff the target's score of it, 0 to 9, reaches `threshold` (SpecReason).

    `greedy` takes the likeliest digit, 0 if something else is likelier; `average` the expectation over the digits.
    """

    method: ScoreMethod = "greedy"
    threshold: float = 7.0


@dataclass(frozen=True, slots=True)
class Generation:
    """One request to the loop."""

    context: Context
    sampling: Sampling
    max_tokens: int = 1024
    """Counted in the tokens of each segment's writer."""
    strategy: Strategy = "semantic"
    gamma: int = 1
    """How many segments the draft writes before the target reads them."""
    token_gamma: int = 4
    """How many tokens the draft proposes at a time in token-level speculation."""
    segmentation: Segmentation = Segmentation.PARAGRAPH
    acceptance: Acceptance = Acceptance()
    scoring: Scoring = Scoring()
    draft_ahead: bool = True
    """Let the draft write on while the target reads; a rejection cancels it. Changes speed, never the outcome."""
    num_logprobs: int | None = None
    """See `WriteOrder`."""
    show_drafts: bool = False
    """Tell of drafted segments as soon as there are any, by `Drafted` events."""
    session: str = ""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Wall time the loop waited for each stage of one segment, in milliseconds."""

    draft_ms: float = 0.0
    read_ms: float = 0.0
    judge_ms: float = 0.0
    write_ms: float = 0.0
    wire_ms: float = 0.0
    """The part of the other four that no engine spent: transport and queueing, the verifier's own work included."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the strategy `auto` expected of the ways to go on when it chose one."""

    gamma: int
    """Segments to draft at a time; 0: the target alone."""
    draft_ms_per_token: float | None
    """Expected time of an output token, drafting `gamma` segments (the best gamma, if the target goes alone); None
    before anything was measured."""
    target_ms_per_token: float | None
    """The same of the target alone."""


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """One line of a generation's trace: a kept segment and how it came to be."""

    index: int
    segment: Segment
    accepted: bool | None
    """True: drafted and accepted. False: the target rewrote it. None: it was never judged."""
    judgement: Judgement | None = None
    draw: float | None = None
    """The uniform number the acceptance rule `sample` compared with the ratio."""
    rejected: Segment | None = None
    """The drafted segment this one replaces."""
    num_proposed_tokens: int = 0
    """Tokens proposed to the target in token-level speculation while it wrote this segment."""
    num_accepted_tokens: int = 0
    """How many of them it kept."""
    score: float | None = None
    """The target's score of the drafted step, 0 to 9, under `spec-reason`."""
    times: StageTimes = StageTimes()
    fallback: str | None = None
    """Why the target wrote alone here although the strategy would have drafted."""
    forecast: Forecast | None = None
    """Why `auto` drafted here, or did not."""
    logprobs: tuple[TokenLogprob, ...] | None = None
    """Its writer's, one a token, if asked for."""


@dataclass(frozen=True, slots=True)
class Drafted:
    """Segments the draft has written and the target is about to read; nothing is decided."""

    index: int
    """Of the first one."""
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a generation."""

    reason: FinishReason


Event = SegmentRecord | Drafted | Finished


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a model service says of itself."""

    model: str
    """Name or path as configured."""
    fingerprint: str
    """Digest of weights and configuration."""
    tokenizer: str
    """Fingerprint of the tokenizer."""
    num_layers: int
    hidden_size: int
    max_context_tokens: int
    state_convention: str = STATE_CONVENTION
    segmentations: tuple[Segmentation, ...] = tuple(Segmentation)
    build: str = ""
    can_be_asked: bool = False
    """Whether its chat template keeps earlier turns, so that it can be asked about a step it has read."""
    tells_logprobs: bool = True
    """Whether it knows the logprobs of what it writes."""
    cache_bytes: int = field(default=0, compare=False)
    """Held now by keys and values of known prefixes."""
    max_cache_bytes: int = 0
    """What they may hold."""


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """What one acceptance rule came to on held-out contexts, by the report of the probes."""

    threshold: float | None
    """None: the rule `sample`."""
    acceptance: float
    """Share of drafted segments accepted."""
    right_accepted: float | None
    """Share accepted of those that were right; None if no truth was known, as below."""
    wrong_accepted: float | None
    """Share accepted of those that were wrong."""
    speed_up: float | None
    """Expected, over the target alone."""


@dataclass(frozen=True, slots=True)
class VerifierInfo:
    """Which states the verifier's probes were trained on."""

    draft_model: str
    target_model: str
    state_convention: str
    segmentations: tuple[Segmentation, ...]
    draft_probe: str = ""
    """Digest of the draft probe's weights."""
    target_probe: str = ""
    build: str = ""
    alternatives: tuple[str, ...] = ()
    """Names of other probes of the same pair, such as `last-hidden`."""
    operating_points: tuple[OperatingPoint, ...] = ()
    """By rising threshold; empty if the probes' report has none."""


def derive_seed(seed: int, purpose: str, position: int) -> int:
    """A 64-bit seed for one named use of a request's randomness."""
    return int.from_bytes(_digest(seed, purpose, position), "little")


def uniform(seed: int, purpose: str, position: int) -> float:
    """The draw in [0, 1) that this name denotes, the same on every machine and every retry."""
    return (int.from_bytes(_digest(seed, purpose, position), "little") >> 11) / (1 << 53)


def _digest(seed: int, purpose: str, position: int) -> bytes:
    return hashlib.blake2b(struct.pack("<Qq", seed, position) + purpose.encode(), digest_size=8).digest()
