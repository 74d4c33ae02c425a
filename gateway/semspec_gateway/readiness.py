"""The handshake: checks that the services respond, and that their models, probes and state conventions match."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from semspec.decoding import STRATEGIES, Backends, Strategies
from semspec.errors import Mismatch, SemspecError, Unavailable
from semspec.types import ModelInfo, VerifierInfo
from semspec_gateway.metrics import POOLED, Metrics
from semspec_gateway.releases import load_served_release
from semspec_gateway.served import Served, mismatch
from semspec_gateway.settings import GatewaySettings
from semspec_gateway.store.store import Store

_log = logging.getLogger(__name__)
T = TypeVar("T")
HANDSHAKE_INTERVAL_S = 10.0
"""Seconds between handshakes while all is well."""
RECHECK_S = 1.0
"""Seconds between handshakes while a service is missing."""
_HANDSHAKE = TypeAdapter(tuple[ModelInfo, ModelInfo, VerifierInfo])


@dataclass(frozen=True, slots=True)
class Status:
    """The result of the last handshake."""

    served: Served | None
    """None until the first handshake that succeeded in full."""
    error: SemspecError | None
    """Why no generation can be served now."""
    missing: SemspecError | None = None
    """Which service is unavailable while the target generates alone."""
    store: SemspecError | None = None
    """Why nothing is stored in Redis; generations continue without it."""


def describe(status: Status, reason: Callable[[SemspecError], str] | None = str) -> str:
    """The status in one line, each error by its `reason`; None: without the reasons of what is missing."""
    if status.error is not None:
        return (reason or str)(status.error)
    if status.served is None:
        return "no handshake yet"
    losses = {"with the target alone": status.missing, "without Redis": status.store}
    parts = [f"{name}: {reason(loss)}" if reason else name for name, loss in losses.items() if loss]
    return ", ".join(["ready", *parts])


class Readiness:
    """Repeats the handshake. Without draft or verifier the gateway stays ready: the target generates alone."""

    def __init__(
        self,
        backends: Backends,
        settings: GatewaySettings,
        store: Store,
        metrics: Metrics,
        strategies: Strategies = STRATEGIES,
    ) -> None:
        self._release = load_served_release(settings.pair, settings.defaults)
        self._backends = (
            replace(backends, likelihood=self._release.likelihood) if self._release else backends
        )
        self._settings = settings
        self._store = store
        self._metrics = metrics
        self.table = strategies
        self._suspected = asyncio.Event()
        self._returned = asyncio.Event()
        self.status = Status(None, None)
        self._last_stored: Served | None = None
        """The handshake that this gateway stored in Redis, for gateways that start later."""
        self.is_draining = False
        """The process is shutting down: running requests continue, new ones should go to another gateway."""

    def require(self) -> Served:
        """Return what is served. Raises: Unavailable, Mismatch."""
        served, error = self.status.served, self.status.error
        if error is not None:
            raise copy(error)  # one that is raised repeatedly would accumulate tracebacks
        if served is None:
            raise Unavailable(
                "the gateway has not reached its services yet", remedy="retry in a moment"
            )
        return served

    def known(self) -> Served:
        """Return what is served, or was at the last handshake with the target, for requests that may wait for it.

        Raises: Unavailable, Mismatch.
        """
        if self.status.served is None or isinstance(self.status.error, Mismatch):
            return self.require()
        return self.status.served

    @property
    def version(self) -> str | None:
        """Version of the release, which a request may name; None without one, and before the first handshake."""
        served = self.status.served
        return served.release.pair.version if served and served.release else None

    def require_ready(self) -> None:
        """Check that load balancers may send requests here. Raises: Unavailable, Mismatch."""
        if self.is_draining:
            raise Unavailable("this gateway is shutting down", remedy="use another")
        self.require()

    @property
    def strategies(self) -> tuple[str, ...]:
        """The strategies that the pair supports; all of them before the first handshake."""
        served = self.status.served
        if served is None:
            return tuple(self.table)
        return served.supported

    @property
    def unsupported(self) -> dict[str, str]:
        """Reasons against the strategies that the pair does not support; empty before the first handshake."""
        served = self.status.served
        return {} if served is None else served.unsupported

    @property
    def default_strategy(self) -> str:
        """The strategy of a request that names none; empty before the first handshake."""
        served = self.status.served
        return "" if served is None else served.default_name

    def suspect(self, missing: str | None = None) -> None:
        """Repeat the handshake soon: a call failed, or a generation fell back because of what is `missing`.

        Until then the status names it, so that a client that has seen the fallback does not read that all is well.
        """
        self._suspected.set()
        if missing and self.status.missing is None:
            self.status = replace(self.status, missing=Unavailable(missing))

    def recover(self) -> None:
        """Repeat the handshake immediately: a call reached a service that was unavailable."""
        self._suspected.set()
        self._returned.set()

    async def watch(self) -> None:
        """Repeat the handshake until cancelled."""
        while True:
            await self.check()
            status = self.status
            if status.served and not (status.error or status.missing or status.store):
                await _within(HANDSHAKE_INTERVAL_S, self._suspected)
            await _within(RECHECK_S, self._returned)
            self._returned.clear()

    async def check(self) -> None:
        """Perform one handshake."""
        self._suspected.clear()
        before, status = self.status, await self._handshake()
        # The answers may be older than the suspicion.
        if status.missing is None and self._suspected.is_set():
            status = replace(status, missing=self.status.missing)
        self.status = status
        self._log_change(before, status)

    def _log_change(self, before: Status, status: Status) -> None:
        if describe(before) != describe(status):
            remedy = ""
            if status.error or status.missing:  # only in the log, since clients see the status
                addresses = ", ".join(
                    f"SEMSPEC_GATEWAY_{role.upper()}_ADDRESS={getattr(self._settings, f'{role}_address')}"
                    for role in POOLED
                )
                remedy = f"; start what does not answer, or fix one of {addresses}"
            _log.info("readiness: %s%s", describe(status), remedy)
            if status.served and status.error is None and before.served != status.served:
                _log.info("%s", status.served.support)
        known = before.served.sends_whole_states if before.served else ()
        for role in status.served.sends_whole_states if status.served else ():
            if role not in known:
                _log.warning(
                    "the %s service does not hold all first layers of the verifier's probes, and sends whole states "
                    "for those: put the release into its folder (SEMSPEC_%s_PAIR)", role, role.upper(),
                )  # fmt: skip

    async def _handshake(self) -> Status:
        known = self.status.served
        store, draft, target, verifier = await asyncio.gather(
            self._store_failure(),
            self._query("draft", self._backends.drafter.info),
            self._query("target", self._backends.target.info),
            self._query("verifier", self._backends.verifier.info),
        )
        answers = {"draft": draft, "target": target, "verifier": verifier}
        up = {role: not isinstance(answer, Unavailable) for role, answer in answers.items()}
        self._metrics.of_services.up({**up, "redis": store is None})
        for role, answer in (("draft", draft), ("target", target)):
            if not isinstance(answer, Unavailable):
                self._metrics.of_services.cache(role, answer)
        if isinstance(target, Unavailable):
            return Status(known, target, store=store)
        missing = next(
            (answer for answer in (draft, verifier) if isinstance(answer, Unavailable)), None
        )
        if known is None and missing is not None:
            known = await self._stored_handshake(target)
        if known is not None:  # the last report of an unavailable draft or verifier is still valid
            draft, verifier = _last(draft, known.draft), _last(verifier, known.verifier)
        if isinstance(draft, Unavailable) or isinstance(verifier, Unavailable):
            return Status(None, missing, store=store)
        served = self._served(draft, target, verifier)
        error = self._mismatch(served)
        if error is None and missing is None:
            await self._store_handshake(served)
        return Status(served, error, missing, store)

    def _served(self, draft: ModelInfo, target: ModelInfo, verifier: VerifierInfo) -> Served:
        release = self._release
        defaults = release.defaults if release else self._settings.defaults
        return Served(draft, target, verifier, self._backends, self.table, release, defaults)

    def _mismatch(self, served: Served) -> Mismatch | None:
        """Return what does not match. A pair that has matched is not compared again."""
        was_checked = self.status.error is None and served == self.status.served
        return None if was_checked else mismatch(served, self._settings.audit)

    async def _store_failure(self) -> Unavailable | None:
        try:
            self._metrics.of_services.memory(*await self._store.check())
        except Unavailable as error:
            return error
        return None

    async def _stored_handshake(self, target: ModelInfo) -> Served | None:
        """The last complete handshake that any gateway stored in Redis."""
        with suppress(Unavailable, ValidationError):  # another version's format does not validate
            stored = await self._store.handshake(self._key(target))
            if stored is not None:
                draft, target, verifier = _HANDSHAKE.validate_json(stored)
                return self._served(draft, target, verifier)
        return None

    async def _store_handshake(self, served: Served) -> None:
        if served != self._last_stored:
            with suppress(Unavailable):
                stored = _HANDSHAKE.dump_json(
                    (served.draft, served.target, served.verifier)
                ).decode()
                await self._store.keep_handshake(self._key(served.target), stored)
                self._last_stored = served

    def _key(self, target: ModelInfo) -> str:
        """Return the key of a handshake in Redis."""
        return (
            f"{target.fingerprint} {self._release.pair.label}"
            if self._release
            else target.fingerprint
        )

    async def _query(self, role: str, ask: Callable[[], Awaitable[T]]) -> T | Unavailable:
        try:
            async with asyncio.timeout(self._settings.health_timeout_s):
                return await ask()
        except (SemspecError, TimeoutError) as error:
            reason = error.text if isinstance(error, SemspecError) else "no answer in time"
            return Unavailable(f"no handshake with the {role} service: {reason}")


def _last(answer: T | Unavailable, known: T) -> T:
    """Return what a service reports now, or reported last."""
    return known if isinstance(answer, Unavailable) else answer


async def _within(limit_s: float, event: asyncio.Event) -> None:
    """Wait for the event, at most `limit_s` seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await event.wait()
