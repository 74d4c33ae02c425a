"""What the three services serve, and which strategies they can play together."""

from dataclasses import dataclass, replace
from typing import Protocol, Self, get_args, runtime_checkable

from semspec.decoding import Backends
from semspec.types import ModelInfo, Segmentation, Strategy, VerifierInfo

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)

TOKEN_LEVEL: frozenset[Strategy] = frozenset({"token-level", "semantic+token-level"})
"""Those in which the target verifies the draft's tokens."""

ALTERNATIVES: frozenset[Strategy] = frozenset({"last-hidden", "surprisal"})
"""Those that judge by other probes than the pair's own, of the strategy's name."""

BY_OWN_PROBES: frozenset[Strategy] = frozenset({"semantic", "semantic+token-level", "auto"})
"""Those that judge by the pair's own probes."""

BY_PROBES: frozenset[Strategy] = ALTERNATIVES | BY_OWN_PROBES
"""Those that ask the verifier."""

WITHOUT_LOGPROBS: frozenset[Strategy] = TOKEN_LEVEL | {"spec-thinking"}
"""Those whose text has tokens that no writer's logprobs belong to."""


@runtime_checkable
class Replicated(Protocol):
    """A player with several replicas, which may serve different models for a while."""

    def of(self, info: ModelInfo) -> Self:
        """The same, but for calls to this model alone."""
        ...


@dataclass(frozen=True, slots=True)
class Served:
    """What the three services said they serve."""

    draft: ModelInfo
    target: ModelInfo
    verifier: VerifierInfo

    @property
    def strategies(self) -> tuple[Strategy, ...]:
        """Those this pair can do."""
        return tuple(strategy for strategy in STRATEGIES if self.unsupported_reason(strategy) is None)

    def pinned(self, backends: Backends) -> Backends:
        """Players that serve these models, or none: a generation does not go on with another."""
        drafter, target = backends.drafter, backends.target
        return replace(
            backends,
            drafter=drafter.of(self.draft) if isinstance(drafter, Replicated) else drafter,
            target=target.of(self.target) if isinstance(target, Replicated) else target,
        )

    def unsupported_reason(self, strategy: Strategy) -> str | None:
        """Why this pair cannot do it and what to do about it, in one line; None if it can."""
        if strategy in TOKEN_LEVEL and self.draft.tokenizer != self.target.tokenizer:
            return (
                f"the strategy {strategy!r} proposes tokens to the target, so both models need one tokenizer, but the "
                f"draft has {self.draft.tokenizer} and the target {self.target.tokenizer}: choose a strategy that "
                "hands over text, such as 'semantic', or serve a pair with one vocabulary"
            )
        if strategy == "spec-reason" and not self.target.can_be_asked:
            return (
                f"the strategy {strategy!r} asks the target about each step, but the chat template of "
                f"{self.target.model} drops earlier turns: choose another strategy, or serve another target"
            )
        if strategy in ALTERNATIVES and strategy not in self.verifier.alternatives:
            return (
                f"the strategy {strategy!r} judges by probes of that name, which the verifier does not serve: choose "
                "another strategy, or add them to the folder SEMSPEC_VERIFIER_ALTERNATIVES"
            )
        return None

    def tells_logprobs(self, strategy: Strategy) -> bool:
        """Whether all that is written has its writer's logprobs."""
        writers = {"target": [self.target], "draft": [self.draft]}.get(strategy, [self.draft, self.target])
        return strategy not in WITHOUT_LOGPROBS and all(writer.tells_logprobs for writer in writers)

    def max_context_tokens(self, strategy: Strategy) -> int:
        """The window a generation must fit in; a draft that only helps must follow to the end."""
        if strategy == "target":
            return self.target.max_context_tokens
        return min(self.draft.max_context_tokens, self.target.max_context_tokens)

    def segmentations(self, strategy: Strategy) -> frozenset[Segmentation]:
        """What a strategy's services have in common."""
        common = frozenset(self.target.segmentations)
        if strategy != "target":
            common &= frozenset(self.draft.segmentations)
        return common & frozenset(self.verifier.segmentations) if strategy in BY_PROBES else common
