"""What a call asks of the steps of a model, beside the token ids that they read, and what comes back."""

from dataclasses import dataclass
from typing import Any, Literal

from semspec.types import Distribution, Gate, GenerationParams, SamplingParams


@dataclass(frozen=True, slots=True)
class Generate:
    """Segments after the tokens, as `GeneratedSegment`s."""

    params: GenerationParams
    is_after_end: bool
    """The context is `ended_by_look_ahead`."""
    written: tuple[int, ...] = ()
    """The tokens of the context that grammar and penalties count as written."""
    kind: Literal["generate"] = "generate"

    @property
    def is_shaped(self) -> bool:
        """Whether logits are changed before a draw."""
        return bool(self.params.grammar) or not self.params.penalties.is_neutral

    @property
    def projection(self) -> str:
        return self.params.projection


@dataclass(frozen=True, slots=True)
class Propose:
    """A `Proposal` of up to `num_tokens` tokens after the tokens."""

    sampling: SamplingParams
    num_tokens: int
    kind: Literal["propose"] = "propose"


@dataclass(frozen=True, slots=True)
class Score:
    """The `SegmentScore`s of the segments, of these lengths, that the tokens end with."""

    lengths: tuple[int, ...]
    projection: str = ""
    """Digest of the projection to apply to the states."""
    kind: Literal["score"] = "score"


@dataclass(frozen=True, slots=True)
class Verify:
    """Speculative sampling of `drafted`, of which the first `num_fed` are the last of the tokens, as `Verified`."""

    drafted: tuple[int, ...]
    num_fed: int
    distributions: tuple[Distribution, ...]
    sampling: SamplingParams
    is_after_end: bool
    gate: Gate | None = None
    parents: tuple[int, ...] = ()
    """As in `Proposal`; empty: a chain."""
    state_layer: int | None = None
    kind: Literal["verify"] = "verify"


@dataclass(frozen=True, slots=True)
class Verified:
    """The tokens of a verification, not yet split into segments."""

    token_ids: tuple[int, ...]
    """The accepted tokens and one recovered or bonus token."""
    mismatches: tuple[bool, ...] = ()
    states: tuple[bytes, ...] = ()
    """`VerifiedTokens.state` for each of the tokens as the last; empty if not at hand."""


@dataclass(frozen=True, slots=True)
class Choose:
    """`ChoiceScores` of the token after the tokens, which end with a question of `num_asked` tokens."""

    options: tuple[int, ...]
    num_asked: int
    kind: Literal["choose"] = "choose"


Request = Generate | Propose | Score | Verify | Choose


def num_following(request: Request) -> int:
    """Number of the last tokens, after the context, that a request reads."""
    match request:
        case Score(lengths=lengths):
            return sum(lengths)
        case Verify(num_fed=num_fed):
            return num_fed
        case Choose(num_asked=num_asked):
            return num_asked
    return 0


@dataclass(frozen=True, slots=True)
class Result:
    """One result of a request."""

    value: Any
    duration_ms: float
    num_cached_tokens: int | None
    """Tokens that the engine had cached when the request began; None: not known."""
