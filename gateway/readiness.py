"""The handshake: checks that the services respond, and that their models, probes and state conventions match."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from semspec.certificates import Renewed
from semspec.decoding import STRATEGIES, Backends, Strategies
from semspec.errors import Mismatch, NotFound, SemspecError, Unavailable
from semspec.gateway.metrics import POOLED, Metrics
from semspec.gateway.routes import Route, is_list, load_routes
from semspec.gateway.served import Served, Status, describe, mismatch
from semspec.gateway.settings import GatewaySettings
from semspec.gateway.store.store import Store
from semspec.types import ModelInfo, VerifierInfo

_log = logging.getLogger(__name__)
T = TypeVar("T")
Connect = Callable[[str, str], Any]
"""Makes a client of a release's own service: of its name in `Backends`, and its addresses."""
HANDSHAKE_INTERVAL_S = 10.0
"""Seconds between handshakes while all is well."""
RECHECK_S = 1.0
"""Seconds between handshakes while a service is missing."""
_HANDSHAKE = TypeAdapter(tuple[ModelInfo, ModelInfo, VerifierInfo])


class Readiness:
    """Repeats the handshake. Without draft or verifier the gateway stays ready: the target generates alone."""

    def __init__(
        self,
        backends: Backends,
        settings: GatewaySettings,
        store: Store,
        metrics: Metrics,
        connect: Connect,
        strategies: Strategies = STRATEGIES,
    ) -> None:
        self._backends = backends
        load = partial(load_routes, settings.pair, settings.defaults)
        self._routes = Renewed(
            [settings.pair] if settings.pair and is_list(settings.pair) else [], load
        )
        self._connect = connect
        self._clients = dict[tuple[str, str], Any]()
        self._noted = dict[str, str | None]()
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
        """What is served. Raises: Unavailable, Mismatch."""
        served, error = self.status.served, self.status.error
        if error is not None:
            raise type(error)(
                error.message
            )  # a new instance: one raised repeatedly would accumulate tracebacks
        if served is None:
            raise Unavailable("the gateway has not reached its services yet; retry in a moment")
        return served

    def choose(self, version: str, draw: float) -> Served:
        """The release of a new answer: that of a version, or without one by the weights; `draw`: uniform in [0, 1).

        Raises: Unavailable, Mismatch, NotFound.
        """
        every = self.status.every if self.status.error is None else self.status.others
        if version:
            if named := [
                one for one in every if one.route and one.route.release.version == version
            ]:
                return named[0]
            self.require()
            raise NotFound(
                f"the version {version!r} is not served; GET /v1/models lists those that are",
                "model",
            )
        sums = list(accumulate(one.route.weight if one.route else 0.0 for one in every))
        chosen = (one for one, until in zip(every, sums, strict=True) if draw * sums[-1] < until)
        return next(chosen, None) or self.require()  # of those that have a weight none is there

    def known(self, models: str = "") -> Served:
        """What is served, or was at the last handshake with the target, for requests that may wait for it: the release
        that a generation began with, if it is, by its stored `models`.

        Raises: Unavailable, Mismatch.
        """
        if other := next(
            (one for one in self.status.others if json.dumps(one.identity) == models), None
        ):
            return other
        if self.status.served is None or isinstance(self.status.error, Mismatch):
            return self.require()
        return self.status.served

    @property
    def versions(self) -> dict[str, str]:
        """Those that a request may name, and the strategy of a request that names no other."""
        every, defaults = self.status.every, self._settings.defaults
        return {
            one.route.release.version: one.default_name(one.defaults(defaults))
            for one in every
            if one.route
        }

    @property
    def labels(self) -> set[str]:
        """Of the releases that are listed; empty is that of a pair without one."""
        return {route.label for route in self._routes.get()} or {""}

    def require_place(self) -> None:
        """Raises Unavailable or Mismatch when load balancers should not send requests here."""
        if self.is_draining:
            raise Unavailable("this gateway is shutting down; use another")
        self.choose("", 0.0)

    @property
    def strategies(self) -> tuple[str, ...]:
        """The strategies that the pair supports; all of them before the first handshake."""
        served = self.status.served
        if served is None:
            return tuple(self.table)
        return served.supported(served.defaults(self._settings.defaults))

    @property
    def unsupported(self) -> dict[str, str]:
        """Reasons against the strategies that the pair does not support; empty before the first handshake."""
        served = self.status.served
        return (
            {} if served is None else served.unsupported(served.defaults(self._settings.defaults))
        )

    @property
    def default_strategy(self) -> str:
        """The strategy of a request that names none; empty before the first handshake."""
        served = self.status.served
        return (
            "" if served is None else served.default_name(served.defaults(self._settings.defaults))
        )

    def suspect(self, missing: str | None = None) -> None:
        """Repeat the handshake soon: a call failed, or a generation fell back because of what is `missing`.

        Until then the status names it, so that no one who has seen the fallback reads that all is well.
        """
        self._suspected.set()
        if self.status.missing is None:
            self.status = replace(self.status, missing=missing)

    def recover(self) -> None:
        """Repeat the handshake immediately: a call reached a service that was unavailable."""
        self._suspected.set()
        self._returned.set()

    async def watch(self) -> None:
        """Repeat the handshake until cancelled."""
        while True:
            await self.check()
            if describe(self.status) == "ready":
                await _within(HANDSHAKE_INTERVAL_S, self._suspected)
            await _within(RECHECK_S, self._returned)
            self._returned.clear()

    async def check(self) -> None:
        """Perform one handshake."""
        self._suspected.clear()
        before, status = self.status, await self._handshake()
        if (
            status.missing is None and self._suspected.is_set()
        ):  # its answers are older than the suspicion
            status = replace(status, missing=self.status.missing)
        self.status = status
        if describe(before) != describe(self.status):
            remedy = ""
            if (
                status.error is not None or status.missing is not None
            ):  # for the log, since clients see the status
                addresses = {
                    role.upper(): getattr(self._settings, f"{role}_address") for role in POOLED
                }
                given = ", ".join(
                    f"SEMSPEC_GATEWAY_{role}_ADDRESS={value}" for role, value in addresses.items()
                )
                remedy = f"; start what does not answer, or fix one of {given}"
            _log.info("readiness: %s%s", describe(self.status), remedy)
            if (
                status.served is not None
                and status.error is None
                and before.served != status.served
            ):
                _log.info(
                    "%s", status.served.support(status.served.defaults(self._settings.defaults))
                )
        known = before.served.sends_whole_states if before.served else ()
        for role in status.served.sends_whole_states if status.served else ():
            if role not in known:
                _log.warning(
                    "the %s service does not hold all first layers of the verifier's probes, and sends whole states "
                    "for those: put the release into its folder (SEMSPEC_%s_PAIR)", role, role.upper(),
                )  # fmt: skip

    async def _handshake(self) -> Status:
        routes = self._routes.get()
        main, others = (routes[0], routes[1:]) if routes else (None, ())
        known = self._known(main)
        store, (draft, target, verifier), *theirs = await asyncio.gather(
            self._store_failure(), *(self._infos(route) for route in (main, *others))
        )
        beside = (self._beside(route, *infos) for route, infos in zip(others, theirs, strict=True))
        status = partial(Status, store=store, others=tuple(filter(None, beside)))
        answers = {"draft": draft, "target": target, "verifier": verifier}
        up = {role: not isinstance(answer, Unavailable) for role, answer in answers.items()}
        self._metrics.of_services.up({**up, "redis": store is None})
        for role, answer in (("draft", draft), ("target", target)):
            if not isinstance(answer, Unavailable):
                self._metrics.of_services.cache(role, answer)
        if isinstance(target, Unavailable):
            return status(known, target)
        missing = next(
            (answer for answer in (draft, verifier) if isinstance(answer, Unavailable)), None
        )
        if known is None and missing is not None:
            known = await self._stored_handshake(target, main)
        if known is not None:  # the last report of an unavailable draft or verifier is still valid
            draft, verifier = _last(draft, known.draft), _last(verifier, known.verifier)
        if isinstance(draft, Unavailable) or isinstance(verifier, Unavailable):
            return status(None, missing)
        served = self._served(draft, target, verifier, main)
        error = Mismatch(reason) if (reason := self._mismatch(served)) else None
        if error is None and missing is None:
            await self._store_handshake(served)
        return status(served, error, missing.message if missing else None)

    def _served(
        self, draft: ModelInfo, target: ModelInfo, verifier: VerifierInfo, route: Route | None
    ) -> Served:
        return Served(draft, target, verifier, self._services(route), self.table, route)

    def _mismatch(self, served: Served) -> str | None:
        """What does not match; what was found to match once is not compared again."""
        was_checked = self.status.error is None and served in self.status.every
        return None if was_checked else mismatch(served, self._settings)

    def _beside(self, route: Route, draft: Any, target: Any, verifier: Any) -> Served | None:
        """A release beside the main one, if it can be served. A draft or verifier that stops does not take it away: its
        answers fall back until it is removed from the list."""
        if known := self._known(route):
            draft, verifier = _last(draft, known.draft), _last(verifier, known.verifier)
        reason = next(
            (one.message for one in (target, draft, verifier) if isinstance(one, Unavailable)), None
        )
        if reason is None:
            served = self._served(draft, target, verifier, route)
            if (reason := self._mismatch(served)) is None:
                return served
        if self._noted.get(route.label) != reason:
            self._noted[route.label] = reason
            _log.error("the release %s is not served: %s", route.label, reason)
        return None

    def _known(self, route: Route | None) -> Served | None:
        """What the last handshake found of a release."""
        return {one.route and one.route.label: one for one in self.status.every}.get(
            route and route.label
        )

    def _services(self, route: Route | None) -> Backends:
        """The gateway's services, and in their place a release's own."""
        if route is None:
            return self._backends
        for own in route.addresses.items() - self._clients.keys():
            self._clients[own] = self._connect(*own)
        clients = {own[0]: self._clients[own] for own in route.addresses.items()}
        return replace(self._backends, likelihood=route.likelihood, **clients)

    async def _infos(self, route: Route | None) -> tuple[Any, Any, Any]:
        """What draft, target and verifier of a release report, or that one is `Unavailable`."""
        services = self._services(route)
        return await asyncio.gather(
            self._query("draft", services.drafter.info),
            self._query("target", services.target.info),
            self._query("verifier", services.verifier.info),
        )

    async def _store_failure(self) -> str | None:
        try:
            self._metrics.of_services.memory(*await self._store.check())
        except Unavailable as error:
            return error.message
        return None

    async def _stored_handshake(self, target: ModelInfo, route: Route | None) -> Served | None:
        """The last complete handshake that any gateway stored in Redis."""
        with suppress(Unavailable, ValidationError):  # another version's format does not validate
            stored = await self._store.handshake(_key(target, route))
            if stored is not None:
                draft, target, verifier = _HANDSHAKE.validate_json(stored)
                return self._served(draft, target, verifier, route)
        return None

    async def _store_handshake(self, served: Served) -> None:
        if served != self._last_stored:
            with suppress(Unavailable):
                stored = _HANDSHAKE.dump_json(
                    (served.draft, served.target, served.verifier)
                ).decode()
                await self._store.keep_handshake(_key(served.target, served.route), stored)
                self._last_stored = served

    async def _query(self, role: str, ask: Callable[[], Awaitable[T]]) -> T | Unavailable:
        try:
            async with asyncio.timeout(self._settings.health_timeout_s):
                return await ask()
        except (SemspecError, TimeoutError) as error:
            reason = error.message if isinstance(error, SemspecError) else "no answer in time"
            return Unavailable(f"no handshake with the {role} service: {reason}")


def _last(told: T | Unavailable, known: T) -> T:
    """What a service reports, or reported last."""
    return known if isinstance(told, Unavailable) else told


def _key(target: ModelInfo, route: Route | None) -> str:
    """Of a handshake in Redis."""
    return f"{target.fingerprint} {route.label}" if route else target.fingerprint


async def _within(limit_s: float, event: asyncio.Event) -> None:
    """Wait for the event, at most `limit_s` seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await event.wait()
