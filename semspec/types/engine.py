"""What the three roles are asked for, and what they answer."""

from dataclasses import dataclass, field

from semspec.rng import SamplingParams
from semspec.types.text import Segment, Segmentation

SURPRISAL_FEATURES = (
    "mean_log_probability", "min_log_probability", "sum_log_probability", "median_log_probability",
    "mean_entropy", "max_entropy", "argmax_share", "surprising_share", "min_margin", "num_tokens",
)  # fmt: skip
"""Statistics of the logits a read computes anyway, in this order: natural logarithms at temperature 1."""


@dataclass(frozen=True, slots=True)
class GenerationParams:
    """What to write after a context."""

    sampling: SamplingParams
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
    """Fingerprint of the model that computed them."""


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
class GeneratedSegment:
    """A segment fresh from its writer."""

    segment: Segment
    states: States | None
    duration_ms: float
    """Time the engine spent on this segment."""
    logprobs: tuple[TokenLogprob, ...] | None = None
    """One a token of the segment, if asked for."""


@dataclass(frozen=True, slots=True)
class SegmentScore:
    """What one forward pass of the target yields for one segment."""

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
class VerifiedTokens:
    """What the target made of a proposal: the tokens it accepted and one of its own, cut into segments."""

    segments: tuple[Segment, ...]
    """Those that are whole now, the first begun by the open tokens of the call."""
    open_ids: tuple[int, ...]
    """Tokens of the segment that is not."""
    num_accepted: int
    """How many of the proposed tokens were kept."""
    duration_ms: float


@dataclass(frozen=True, slots=True)
class ChoiceScores:
    """What the target would say first when asked a question beside its work."""

    probabilities: tuple[float, ...]
    """Of each option, at temperature 1, over the whole vocabulary."""
    likeliest: str
    """Text of the most probable token, option or not."""
    duration_ms: float
