"""The replicas of one service, at the addresses that its address list resolves to."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from copy import copy
from dataclasses import replace
from operator import attrgetter
from typing import TypeVar

from semspec.background import keep_running
from semspec.errors import SemspecError, Unavailable
from semspec.rpc.connection import ClientOptions, Connection
from semspec.rpc.replica import Health, Replica, ServiceSpec
from semspec.rpc.resolver import Lookup, Resolver, look_up
from semspec.rpc.selection import best

R = TypeVar("R")


_log = logging.getLogger(__name__)


class Pool:
    """Sends each call to the best replica. Construct within the running loop, close with `aclose`.

    All calls go to replicas of one model: the first model served, until no replica serves it.
    Raises: InvalidRequest when `addresses` is not an address list.
    """

    def __init__(
        self, spec: ServiceSpec, addresses: str, options: ClientOptions, lookup: Lookup = look_up
    ) -> None:
        self._spec, self._options = spec, options
        self._resolver = Resolver(addresses, lookup)
        self._members: dict[str, Replica] = {}
        self._leaving: dict[str, Replica] = {}
        """Replicas removed from the address list; closed when their calls have ended."""
        self.num_unprojected_states = 0
        """Segments whose states were not projected because the replica lacks the projection; clients count them."""
        self._model: object = None
        self._mismatched: set[str] = set()
        self._is_resolved = asyncio.Event()
        resolving = keep_running(f"resolving the addresses of {spec.service}", self._keep_resolving)
        self._resolving = asyncio.create_task(resolving)

    @property
    def num_replicas(self) -> int:
        """Number of replicas that serve the model."""
        return sum(replica.health is Health.SERVING for replica in self._usable())

    @property
    def num_hung(self) -> int:
        """Number of replicas that have work and make no step."""
        return sum(replica.health is Health.HUNG for replica in self._members.values())

    @property
    def num_in_flight(self) -> int:
        """Calls in flight."""
        return sum(
            replica.num_in_flight
            for group in (self._members, self._leaving)
            for replica in group.values()
        )

    async def call(
        self, work: Callable[[Connection], Awaitable[R]], session: str = "", model: object = None
    ) -> R:
        """Return the result of `work` from the best replica; on `RETRIABLE_ERRORS`, try each other replica once.

        `model`: use only replicas that serve it. Raises: what `work` raises; the last error if all replicas failed.
        """
        tried: dict[Replica, SemspecError] = {}
        while True:
            replica = await self.choose(session, tried, model)
            with replica.attempt(tried):
                async with replica.while_reachable():
                    return await work(replica.connection)

    async def choose(
        self, session: str, tried: Mapping[Replica, SemspecError], model: object = None
    ) -> Replica:
        """Return the best replica not in `tried`. With `model`: among those that serve it.

        Raises: the last error in `tried` when no replica remains, or why no replica serves.
        """
        await self._is_resolved.wait()
        if not (candidates := self._candidates(tried, model)):
            unknown = [
                replica
                for replica in self._members.values()
                if replica.needs_check and replica not in tried
            ]
            # One may be serving by now.
            await asyncio.gather(*(replica.check() for replica in unknown))
            candidates = self._candidates(tried, model)
        if candidates:
            return best(candidates, session)
        failures = [replica.failure for replica in self._members.values() if replica.failure]
        raise self._failure([*failures, *tried.values()])

    async def aclose(self) -> None:
        """Cancel running calls and disconnect. Later calls raise Unavailable."""
        self._is_resolved.set()
        self._resolving.cancel()
        await asyncio.wait([self._resolving])
        await asyncio.gather(
            *(replica.aclose() for replica in (*self._members.values(), *self._leaving.values()))
        )

    def _failure(self, errors: Sequence[SemspecError]) -> SemspecError:
        """Return the last of the replicas' `errors`, with the role, since clients see it."""
        if errors and not isinstance(last := errors[-1], Unavailable):
            return copy(last)  # each raise adds to an error's traceback
        reason = f": {errors[-1].text}" if errors else ""
        if self.num_hung:
            return Unavailable(
                f"{self.num_hung} replicas of the {self._spec.role} hang, no other answers{reason}"
            )
        return Unavailable(f"no replica of the {self._spec.role} answers{reason}", remedy="retry")

    def _candidates(self, tried: Container[Replica], model: object) -> list[Replica]:
        return [
            replica for replica in self._usable() if replica not in tried and replica.serves(model)
        ]

    def _usable(self) -> list[Replica]:
        """Return the members that serve the model or were not checked yet. Changes the model when none serves it."""
        replicas = list(self._members.values())
        known = [replica for replica in replicas if replica.model is not None]
        if known and self._model not in {replica.model for replica in known}:
            self._model = min(known, key=attrgetter("health")).model
        return [replica for replica in replicas if replica.model in (None, self._model)]

    async def _keep_resolving(self) -> None:
        while True:
            try:
                self._adopt(await self._resolver.resolve())
                await self._close_idle()
            except SemspecError as error:  # unreadable certificates; the next attempt may succeed
                _log.error("cannot call %s: %s", self._spec.service, error)
            self._is_resolved.set()
            self._report_mismatched()
            await asyncio.sleep(self._options.resolve_s)

    def _adopt(self, endpoints: Mapping[str, str]) -> None:
        for address in self._members.keys() - endpoints:
            self._leaving[address] = self._members.pop(address)
        for address, name in endpoints.items():
            if address in self._leaving:
                self._members[address] = self._leaving.pop(address)
            elif address not in self._members:
                options = replace(self._options, server_name=name or self._options.server_name)
                self._members[address] = Replica(address, self._spec, options)

    async def _close_idle(self) -> None:
        for address, replica in list(self._leaving.items()):
            if not replica.num_in_flight:
                await replica.aclose()
                del self._leaving[address]

    def _report_mismatched(self) -> None:
        mismatched = self._members.keys() - {replica.address for replica in self._usable()}
        for address in mismatched - self._mismatched:
            _log.warning(
                "%s at %s serves a different model from the other replicas; it is not used",
                self._spec.service,
                address,
            )
        self._mismatched = mismatched
