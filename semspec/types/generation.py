"""A generation: its text, how its tokens are drawn, what is asked of the loop, and the events it becomes."""

import hashlib
import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


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
class Message:
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


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
class SamplingParams:
    """How tokens are drawn. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 switch those filters off."""

    temperature: float = 0.6
    top_p: float = 0.95
    top_k: int = 0
    seed: int = 0
    """Names the stream of draws: token number t of a context is drawn with `uniform(seed, "token", t)`."""


def derive_seed(seed: int, purpose: str, position: int) -> int:
    """A 64-bit seed for one named use of a request's randomness."""
    return int.from_bytes(_digest(seed, purpose, position), "little")


def uniform(seed: int, purpose: str, position: int) -> float:
    """The draw in [0, 1) that this name denotes, the same on every machine and every retry."""
    return (int.from_bytes(_digest(seed, purpose, position), "little") >> 11) / (1 << 53)


def _digest(seed: int, purpose: str, position: int) -> bytes:
    return hashlib.blake2b(struct.pack("<Qq", seed, position) + purpose.encode(), digest_size=8).digest()


AcceptanceRule = Literal["sample", "threshold"]
ScoreMethod = Literal["greedy", "average"]


@dataclass(frozen=True, slots=True)
class Acceptance:
    """When a drafted segment is kept, given `ratio` = target_probability / draft_probability.

    `sample` accepts with probability min(1, ratio) (SemanticSpec, Algorithm 1), `threshold` iff ratio >= threshold.
    """

    rule: AcceptanceRule = "sample"
    threshold: float = 0.5


MAX_SCORE = 9
"""The best score of a step."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """When `spec-reason` keeps a step: iff the target's score of it, 0 to 9, reaches `threshold` (SpecReason).

    `greedy` takes the likeliest digit, 0 if something else is likelier; `average` the expectation over the digits.
    """

    method: ScoreMethod = "greedy"
    threshold: float = 7.0


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
class Judgement:
    """The verifier's view of one segment: the semantic probability of its meaning under each model, in [0, 1]."""

    draft_probability: float
    target_probability: float


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
