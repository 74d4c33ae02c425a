"""What engines and verifiers are asked for, what they answer, and what they say of themselves."""

from dataclasses import dataclass, field

from semspec.types.generation import SamplingParams, Segment, Segmentation, TokenLogprob

STATE_CONVENTION = "states-v1"
"""Embedding and every block's output, the last one before the final norm; fp32 mean over the segment's own tokens,
delimiter included, every token fed: `[num_layers + 1, hidden_size]`."""
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
