"""The handshake: do the services answer, and do their models, probes and state conventions belong together?"""

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol, Self, TypeVar, runtime_checkable

from pydantic import TypeAdapter, ValidationError

from semspec.decoding import STRATEGIES, Backends
from semspec.errors import Mismatch, SemspecError, Unavailable
from semspec.gateway.metrics import Metrics
from semspec.gateway.settings import GatewaySettings
from semspec.gateway.store.store import Store
from semspec.types import STATE_CONVENTION, ModelInfo, Segmentation, VerifierInfo, Writer

_log = logging.getLogger(__name__)
T = TypeVar("T")


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
    def strategies(self) -> tuple[str, ...]:
        """Names of those this pair can do."""
        return tuple(strategy for strategy in STRATEGIES if self.unsupported_reason(strategy) is None)

    def pinned(self, backends: Backends) -> Backends:
        """Players that serve these models, or none: a generation does not go on with another."""
        drafter, target = backends.drafter, backends.target
        return replace(
            backends,
            drafter=drafter.of(self.draft) if isinstance(drafter, Replicated) else drafter,
            target=target.of(self.target) if isinstance(target, Replicated) else target,
        )

    def unsupported_reason(self, strategy: str) -> str | None:
        """Why this pair cannot do it and what to do about it, in one line; None if it can."""
        needs = STRATEGIES[strategy]
        if needs.needs_one_vocabulary and self.draft.tokenizer != self.target.tokenizer:
            return (
                f"the strategy {strategy!r} proposes tokens to the target, so both models need one tokenizer, but the "
                f"draft has {self.draft.tokenizer} and the target {self.target.tokenizer}: choose a strategy that "
                "hands over text, such as 'semantic', or serve a pair with one vocabulary"
            )
        if needs.needs_earlier_turns and not self.target.can_be_asked:
            return (
                f"the strategy {strategy!r} asks the target about each step, but the chat template of "
                f"{self.target.model} drops earlier turns: choose another strategy, or serve another target"
            )
        if needs.probes and needs.probes not in self.verifier.alternatives:
            return (
                f"the strategy {strategy!r} judges by probes of that name, which the verifier does not serve: choose "
                "another strategy, or add them to the folder SEMSPEC_VERIFIER_ALTERNATIVES"
            )
        return None

    def tells_logprobs(self, strategy: str) -> bool:
        """Whether all that is written has its writer's logprobs."""
        writers = {Writer.DRAFT: self.draft, Writer.TARGET: self.target}
        kept = (writers[writer] for writer in STRATEGIES[strategy].writers)
        return STRATEGIES[strategy].tells_logprobs and all(writer.tells_logprobs for writer in kept)

    def max_context_tokens(self, strategy: str) -> int:
        """The window a generation must fit in; a draft that only helps must follow to the end."""
        if Writer.DRAFT not in STRATEGIES[strategy].writers:
            return self.target.max_context_tokens
        return min(self.draft.max_context_tokens, self.target.max_context_tokens)

    def segmentations(self, strategy: str) -> frozenset[Segmentation]:
        """What a strategy's services have in common."""
        common = frozenset(self.target.segmentations)
        if Writer.DRAFT in STRATEGIES[strategy].writers:
            common &= frozenset(self.draft.segmentations)
        is_judged = STRATEGIES[strategy].probes is not None
        return common & frozenset(self.verifier.segmentations) if is_judged else common


_SERVED = TypeAdapter(Served)


@dataclass(frozen=True, slots=True)
class Status:
    """The result of the last handshake."""

    served: Served | None
    """None until the first handshake that succeeded in full."""
    error: SemspecError | None
    """Why no generation can be served now."""
    missing: str | None = None
    """What is away while generations go on with the target alone."""


class Readiness:
    """Keeps the handshake current. A lost draft or verifier does not end readiness: the target goes on alone."""

    def __init__(self, backends: Backends, settings: GatewaySettings, store: Store, metrics: Metrics) -> None:
        self._backends = backends
        self._settings = settings
        self._store = store
        self._metrics = metrics
        self._suspected = asyncio.Event()
        self._returned = asyncio.Event()
        self.status = Status(None, None)
        self._kept: Served | None = None
        """As it stands in Redis for gateways to come."""
        self.is_draining = False
        """The process has been told to stop: what runs goes on, what is new had better go elsewhere."""

    def require(self) -> Served:
        """What is served. Raises: Unavailable, Mismatch."""
        served, error = self.status.served, self.status.error
        if error is not None:
            raise type(error)(error.message)  # a fresh one: an error raised again and again keeps every traceback
        if served is None:
            raise Unavailable("the gateway has not met its services yet; retry in a moment")
        return served

    def known(self) -> Served:
        """What is served, or was when the target was last met, for what may wait. Raises: Unavailable, Mismatch."""
        if self.status.served is None or isinstance(self.status.error, Mismatch):
            return self.require()
        return self.status.served

    def require_place(self) -> None:
        """Whether load balancers should send requests here. Raises: Unavailable, Mismatch."""
        if self.is_draining:
            raise Unavailable("this gateway is shutting down; ask another")
        self.require()

    @property
    def strategies(self) -> tuple[str, ...]:
        """Those the pair can do; all of them as long as nothing is known of it."""
        served = self.status.served
        return tuple(STRATEGIES) if served is None else served.strategies

    def suspect(self) -> None:
        """A call failed or fell back: shake hands again soon."""
        self._suspected.set()

    def recover(self) -> None:
        """A call found again what was away: shake hands at once."""
        self._suspected.set()
        self._returned.set()

    async def watch(self) -> None:
        """Shake hands for ever."""
        while True:
            await self.check()
            if describe(self.status) == "ready":
                await _within(self._settings.handshake_interval_s, self._suspected)
            await _within(self._settings.recheck_s, self._returned)
            self._returned.clear()

    async def check(self) -> None:
        """One handshake."""
        self._suspected.clear()
        before, self.status = self.status, await self._handshake()
        if describe(before) != describe(self.status):
            _log.info("readiness: %s", describe(self.status))

    async def _handshake(self) -> Status:
        settings, known = self._settings, self.status.served
        draft, target, verifier, redis_answers = await asyncio.gather(
            self._ask("draft", settings.draft_address, self._backends.drafter.info()),
            self._ask("target", settings.target_address, self._backends.target.info()),
            self._ask("verifier", settings.verifier_address, self._backends.verifier.info()),
            self._store.ping(),
        )
        answers = {"draft": draft, "target": target, "verifier": verifier}
        up = {role: not isinstance(answer, Unavailable) for role, answer in answers.items()}
        self._metrics.of_services.up({**up, "redis": redis_answers})
        for role, answer in (("draft", draft), ("target", target)):
            if not isinstance(answer, Unavailable):
                self._metrics.of_services.cache(role, answer)
        if isinstance(target, Unavailable):
            return Status(known, target)
        missing = next((answer for answer in (draft, verifier) if isinstance(answer, Unavailable)), None)
        if known is None and missing is not None:
            known = await self._handed_down(target)
        if known is not None:  # what a lost helper said of itself still holds
            draft = known.draft if isinstance(draft, Unavailable) else draft
            verifier = known.verifier if isinstance(verifier, Unavailable) else verifier
        if isinstance(draft, Unavailable) or isinstance(verifier, Unavailable):
            return Status(None, missing)
        served = Served(draft, target, verifier)
        reason = mismatch(served, settings)
        error = None if reason is None else Mismatch(reason)
        if error is None and missing is None:
            await self._hand_down(served)
        return Status(served, error, None if missing is None else missing.message)

    async def _handed_down(self, target: ModelInfo) -> Served | None:
        """The last complete handshake that any gateway stored in Redis."""
        with suppress(Unavailable, ValidationError):  # of another version
            told = await self._store.handshake(target.fingerprint)
            return None if told is None else _SERVED.validate_json(told)
        return None

    async def _hand_down(self, served: Served) -> None:
        if served != self._kept:
            with suppress(Unavailable):
                await self._store.keep_handshake(served.target.fingerprint, _SERVED.dump_json(served).decode())
                self._kept = served

    async def _ask(self, role: str, address: str, answer: Awaitable[T]) -> T | Unavailable:
        try:
            async with asyncio.timeout(self._settings.handshake_deadline_s):
                return await answer
        except (SemspecError, TimeoutError) as error:
            reason = error.message if isinstance(error, SemspecError) else "no answer in time"
            remedy = f"start it, or fix SEMSPEC_GATEWAY_{role.upper()}_ADDRESS"
            return Unavailable(f"no handshake with the {role} service at {address}: {reason}; {remedy}")


async def _within(limit_s: float, event: asyncio.Event) -> None:
    """Wait for the event, but no longer."""
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await event.wait()


def describe(status: Status) -> str:
    """The status in one line."""
    if status.error is not None:
        return status.error.message
    if status.served is None:
        return "no handshake yet"
    return f"ready, with the target alone: {status.missing}" if status.missing else "ready"


def mismatch(served: Served, settings: GatewaySettings) -> str | None:
    """What does not belong together and what to do about it, in one line; None if all fits."""
    draft, target, verifier = served.draft, served.target, served.verifier
    conventions = {
        "draft": draft.state_convention,
        "target": target.state_convention,
        "verifier": verifier.state_convention,
    }
    for role, convention in conventions.items():
        if convention != STATE_CONVENTION:
            return f"the {role} service speaks {convention!r}, this gateway {STATE_CONVENTION!r}: upgrade the older one"
    for role, info, expected, address in (
        ("draft", draft, verifier.draft_model, settings.draft_address),
        ("target", target, verifier.target_model, settings.target_address),
    ):
        if info.fingerprint != expected:
            return (
                f"the verifier's {role} probe was trained on model {expected}, but the {role} service at {address} "
                f"serves {info.fingerprint} ({info.model}): start the verifier with that model's probe"
            )
    if not served.segmentations("semantic"):
        return "draft, target and verifier have no segmentation in common: use probes trained on one the engines know"
    unsupported_reason = served.unsupported_reason(settings.default_strategy)
    return (
        None if unsupported_reason is None else f"SEMSPEC_GATEWAY_DEFAULT_STRATEGY cannot be done: {unsupported_reason}"
    )
