"""Requests to engines and verifiers, their results, and their handshakes."""

import struct
from dataclasses import dataclass, field
from typing import Literal

from semspec.types.generation import (
    NO_PENALTIES,
    Penalties,
    Piece,
    SamplingParams,
    Segment,
    Segmentation,
    SegmentEnd,
    TokenLogprob,
)

FINGERPRINT = "sha256-full"
"""Prefix of models' fingerprints: a SHA-256 over the configuration and every byte of the weights."""
STATE_CONVENTION = "states-v1"
"""Pooled states `[num_layers + 1, hidden_size]`: the embeddings and the output of every block, the last one before the
final norm, unlike `hidden_states[-1]` of transformers; fp32 mean over all tokens of the segment, with its delimiter.
Every token is fed."""
GRAMMAR = "grammar"
"""The parameter of errors about `GenerationParams.grammar`, which a client may cause."""
SURPRISAL_FEATURES = (
    "mean_log_probability", "min_log_probability", "sum_log_probability", "median_log_probability",
    "mean_entropy", "max_entropy", "argmax_share", "surprising_share", "min_margin", "num_tokens",
)  # fmt: skip
"""Statistics of the logits of a scored segment, in this order: natural logarithms at temperature 1."""

RetrievalSource = Literal["all", "ngrams", "context", "datastore"]
"""Where proposals are retrieved. `context`: earlier n-grams of the context; `ngrams`: also those of the datastore;
`all`: also its semantic neighbours; `datastore`: as `all` without the context's own n-grams."""


@dataclass(frozen=True, slots=True)
class Retrieval:
    """Has a drafter propose tokens from its datastore instead of its model."""

    state: bytes = field(default=b"", repr=False)
    """`VerifiedTokens.state` of the verification that wrote the context's last token; empty: not known."""
    source: RetrievalSource = "all"


@dataclass(frozen=True, slots=True)
class GenerationParams:
    """Parameters of a call that generates segments after a context."""

    sampling: SamplingParams
    segmentation: Segmentation = Segmentation.PARAGRAPH
    max_segments: int = 1
    """0: no limit other than end-of-sequence and token budget."""
    max_tokens: int = 1024
    """Token budget of all segments together, end-of-sequence included."""
    max_segment_tokens: int = 512
    """Token limit of one segment; a segment without boundary ends there."""
    want_states: bool = False
    num_logprobs: int | None = None
    """Number of alternatives to return per token; 0: only logprobs of the generated tokens; None: no logprobs."""
    session: str = ""
    """Hint for prefix caching and routing."""
    owner: str = ""
    """Digest of the name of the request's owner: owners take turns to have grammars compiled."""
    projection: str = ""
    """Digest of the projection to apply to the states. An engine that does not have it returns the states."""
    is_ahead: bool = False
    """Draft-ahead: the call starts after others and is evicted before them."""
    grammar: str = ""
    """Grammar of all segments of the context and of this call, in llguidance's Lark syntax; only if
    `supports_grammars`."""
    penalties: Penalties = NO_PENALTIES
    """Penalties over all segments of the context and of this call; only if `ModelInfo.supports_penalties`."""
    retrieval: Retrieval | None = None
    """Makes `propose` retrieve tokens; None: the model proposes."""
    min_tokens: int = 0
    """End-of-sequence is not drawn before this many tokens; only if `ModelInfo.supports_penalties`."""
    stops: tuple[str, ...] = ()
    """Texts that end the call with the token that completes the first of them in the output, which is all segments of
    the context and of this call. They do not change a draw."""
    splits_reasoning: bool = False
    """Whether `stops` are looked for in the answer alone, and not in the reasoning before it."""

    def is_complete(self, num_segments: int, num_tokens: int, end: SegmentEnd) -> bool:
        """Return whether a call with this many segments and tokens, the last of which ended so, is complete."""
        return end.is_last or num_tokens >= self.max_tokens or 0 < self.max_segments <= num_segments


@dataclass(frozen=True, slots=True)
class States:
    """Pooled hidden states of one segment (`states-v1`): little-endian fp32, `[num_layers + 1, hidden_size]`."""

    data: bytes = field(repr=False)
    shape: tuple[int, int]
    model: str
    """Fingerprint of the model that computed them."""
    projection: str = ""
    """Digest of the projection that was applied to them; the shape is then `[1, width]`. Empty: none."""


@dataclass(frozen=True, slots=True)
class GeneratedSegment:
    """A generated segment with its states and logprobs."""

    segment: Segment
    states: States | None
    duration_ms: float
    logprobs: tuple[TokenLogprob, ...] | None = None
    num_cached_tokens: int | None = field(default=None, compare=False)
    """Tokens of the context that the engine had cached when the call began; None: not known."""


@dataclass(frozen=True, slots=True)
class SegmentScore:
    """Result of the target's forward pass for one segment."""

    states: States
    surprisal: tuple[float, ...]
    """Aligned with `SURPRISAL_FEATURES`."""
    num_tokens: int
    duration_ms: float
    """Time of the forward pass; the same for all segments scored in it."""
    num_cached_tokens: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Distribution:
    """A sparse next-token distribution after temperature, top-k and top-p, renormalised."""

    token_ids: bytes = field(repr=False)
    """Little-endian uint32, `[num_kept]`, ascending."""
    probabilities: bytes = field(repr=False)
    """Little-endian fp32, `[num_kept]`."""

    @classmethod
    def certain(cls, token_id: int) -> "Distribution":
        """Return the distribution of a token that was not drawn."""
        return cls(struct.pack("<I", token_id), struct.pack("<f", 1.0))


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tokens a drafter proposes, each with the distribution it was drawn from: one entry if it was not drawn."""

    token_ids: tuple[int, ...]
    distributions: tuple[Distribution, ...]
    tokenizer: str
    """Fingerprint of the tokenizer the ids belong to; the target must have the same ordinary tokens."""
    duration_ms: float
    state_layer: int | None = None
    """Row of `states-v1` that the target is to return of one token, for the next retrieval; None: nothing."""


@dataclass(frozen=True, slots=True)
class VerifiedTokens:
    """Result of verifying a proposal: the accepted tokens and one recovered or bonus token, split into segments."""

    segments: tuple[Segment, ...]
    """The completed segments; the first starts with the open tokens of the call."""
    open_ids: tuple[int, ...]
    num_accepted: int
    duration_ms: float
    open_piece: Piece | None = None
    """The incomplete segment as text with its ids, if the proposal was of another tokenizer."""
    state: bytes = field(default=b"", repr=False)
    """Hidden state of the token before the last one written, in the layer that the proposal names: little-endian fp32
    `[hidden_size]`. Empty if it names none, or where the state is not at hand."""
    num_cached_tokens: int | None = field(default=None, compare=False)
    open_text: str = ""
    """Text of `open_ids`, as far as no later token changes it."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Handshake of a model service."""

    model: str
    fingerprint: str
    """Digest of weights and configuration, `FINGERPRINT:` and 16 hexadecimal digits; empty without a model."""
    tokenizer: str
    """Fingerprint of the tokenizer; see `shares_ordinary_tokens`."""
    num_layers: int
    hidden_size: int
    max_context_tokens: int
    state_convention: str = STATE_CONVENTION
    segmentations: tuple[Segmentation, ...] = tuple(Segmentation)
    build: str = ""
    supports_logprobs: bool = True
    """Whether it can return logprobs of generated tokens."""
    cache_bytes: int = field(default=0, compare=False)
    max_cache_bytes: int = 0
    chat_template: str = ""
    """Digest of the chat template and of the special tokens it may name; empty if there is none."""
    template_variables: tuple[str, ...] = ()
    """Variables of the chat template that a request may set, in alphabetical order."""
    supports_grammars: bool = False
    """Whether its engine can hold what it writes to a grammar, and its vocabulary can spell any text."""
    supports_min_p: bool = False
    """Whether its engine knows `SamplingParams.min_p`."""
    supports_penalties: bool = False
    """Whether its engine knows `GenerationParams.penalties` and `GenerationParams.min_tokens`."""
    num_token_ids: int = 0
    """Exclusive upper limit of the token ids that `Penalties.logit_bias` may name; 0: not known."""
    datastore: str = ""
    """Digest of the datastore that the service retrieves from; empty if there is none."""
    datastore_model: str = ""
    """Fingerprint of the target whose answers the datastore holds."""
    projections: tuple[str, ...] = ()
    """Digests of the projections that it holds, in alphabetical order."""
    load_s: float = field(default=0.0, compare=False)
    """Seconds that loading and testing it took; 0: not known."""

    @property
    def has_model(self) -> bool:
        """Return whether the service runs a model; a draft service may have only a datastore."""
        return bool(self.fingerprint)


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """Result of one acceptance rule on held-out contexts, from the report of the probes."""

    threshold: float | None
    """None: the rule `sample`."""
    acceptance: float
    """Share of drafted segments accepted."""
    right_accepted: float | None
    """Share of right segments that were accepted; None if labels are unknown, as for the next two."""
    wrong_accepted: float | None
    """Share of wrong segments that were accepted."""
    speed_up: float | None
    """Expected speed-up over the target alone."""


@dataclass(frozen=True, slots=True)
class VerifierInfo:
    """Handshake of the verifier: the models and states its probes were trained on."""

    draft_model: str
    target_model: str
    state_convention: str
    segmentations: tuple[Segmentation, ...]
    draft_probe: str = ""
    """Digest of the draft probe's weights."""
    target_probe: str = ""
    build: str = ""
    alternatives: tuple[str, ...] = ()
    """Names of other probes for the same pair, such as `last-hidden`."""
    operating_points: tuple[OperatingPoint, ...] = ()
    """By rising threshold; empty if the probes' report has none."""
    draft_tokenizer: str = ""
    """Fingerprint of the tokenizer that the draft had when its probe was trained; empty: not checked."""
    target_tokenizer: str = ""
    projections: tuple["ProbeProjections", ...] = ()
    """Projections that engines can compute, by the probes' name; probes that use no states are not listed."""
    equivalence: str = ""
    """Name of the equivalence of meaning that it clusters by; empty: it has none."""

    @property
    def has_probes(self) -> bool:
        """Return whether there are probes; a pair may be served without."""
        return bool(self.draft_model)


@dataclass(frozen=True, slots=True)
class ProbeProjections:
    """Digests of the projections of a pair of probes."""

    probes: str
    """Name in `VerifierInfo.alternatives`; "" for the default probes."""
    draft: str
    target: str
    """Empty if the target's probe uses no states."""
