"""What the services say of themselves."""

from dataclasses import dataclass, field

from semspec.types.text import Segmentation

STATE_CONVENTION = "states-v1"
"""Embedding and every block's output, the last one before the final norm; fp32 mean over the segment's own tokens,
delimiter included, every token fed: `[num_layers + 1, hidden_size]`."""


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
