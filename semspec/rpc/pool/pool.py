"""The replicas of one service, and the selection of a replica for each call.

Rendezvous hashing (Thaler and Ravishankar 1998) ranks the replicas for every session. The first replica gets the
session's calls, so its KV cache holds the session's prefix. An overloaded replica is skipped (consistent hashing with
bounded loads, Mirrokni et al. 2016). Adding or removing a replica moves only the sessions that rank it first.
"""

import asyncio
import hashlib
import logging
import random
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import replace
from math import ceil
from operator import attrgetter
from statistics import fmean
from typing import Protocol, TypeVar

from semspec.errors import InternalError, Overloaded, SemspecError, Unavailable
from semspec.rpc.connection import ClientOptions, Connection
from semspec.rpc.pool.replica import Health, Replica, ServiceSpec
from semspec.rpc.pool.resolver import Lookup, Resolver, look_up

BALANCE = 1.25
"""Maximum load of a replica, relative to the mean, up to which its sessions stay on it."""


class Candidate(Protocol):
    """The properties of a replica that the selection uses."""

    @property
    def address(self) -> str: ...

    @property
    def health(self) -> Health: ...

    @property
    def num_in_flight(self) -> int: ...

    @property
    def is_overloaded(self) -> bool:
        """Whether it returned Overloaded recently."""
        ...


K = TypeVar("K", bound=Candidate)


def best(candidates: Sequence[K], session: str) -> K:
    """The replica for the next call of `session`.

    Among the replicas with the best health: the first in the session's ranking that is below `capacity`; without a
    session, the one with the fewest calls in flight. Raises: ValueError when there are no candidates.
    """
    healthiest = min(candidate.health for candidate in candidates)
    equals = [candidate for candidate in candidates if candidate.health is healthiest]
    if len(equals) == 1:
        return equals[0]
    if not session:
        return min(equals, key=lambda candidate: (candidate.is_overloaded, candidate.num_in_flight, random.random()))
    limit = capacity([candidate.num_in_flight for candidate in equals])
    return min(
        equals,
        key=lambda candidate: (
            candidate.is_overloaded or candidate.num_in_flight >= limit,
            -weight(session, candidate.address),
        ),
    )


def capacity(loads: Sequence[int]) -> int:
    """Maximum calls in flight at one replica, including the next call, for the given loads; one is always below it."""
    return ceil(BALANCE * fmean(loads)) + 1


def weight(session: str, address: str) -> int:
    """Rendezvous weight of a replica for a session: uniform in [0, 2^64)."""
    name = f"{session}\0{address}".encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")


R = TypeVar("R")

ELSEWHERE = (Unavailable, Overloaded, InternalError)
"""Errors after which the call is retried on another replica: it is away, has no room, or is broken, which includes an
answer that makes no sense."""

_log = logging.getLogger(__name__)


class Pool:
    """Sends each call to the best replica. Construct within the running loop, close with `aclose`.

    All calls go to replicas of one model: the first model served, until no replica serves it.
    Raises: InvalidRequest when `addresses` is no address list.
    """

    def __init__(self, spec: ServiceSpec, addresses: str, options: ClientOptions, lookup: Lookup = look_up) -> None:
        self._spec, self._options = spec, options
        self._resolver = Resolver(addresses, lookup)
        self._members: dict[str, Replica] = {}
        self._leaving: dict[str, Replica] = {}
        """Replicas removed from the address list; closed when their calls have ended."""
        self.num_whole_states = 0
        """Segments whose states came whole, which the clients count."""
        self._model: object = None
        self._mismatched: set[str] = set()
        self._is_resolved = asyncio.Event()
        self._resolving = asyncio.create_task(self._keep_resolving())

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
        return sum(replica.num_in_flight for group in (self._members, self._leaving) for replica in group.values())

    async def call(self, work: Callable[[Connection], Awaitable[R]], session: str = "", model: object = None) -> R:
        """The result of `work` from the best replica; on errors in `ELSEWHERE`, tries each other replica once.

        `model`: use only replicas that serve it. Raises: what `work` raises; the last error if all replicas failed.
        """
        tried: dict[Replica, SemspecError] = {}
        while True:
            replica = await self.choose(session, tried, model)
            try:
                with replica.counted():
                    async with replica.while_reachable():
                        return await work(replica.connection)
            except ELSEWHERE as error:
                replica.failed(error)
                tried[replica] = error

    async def choose(self, session: str, tried: Mapping[Replica, SemspecError], model: object = None) -> Replica:
        """The best replica not in `tried`. With `model`: among those that serve it or were not checked yet.

        Raises: the last error in `tried` when no replica remains, or Unavailable.
        """
        await self._is_resolved.wait()
        if not (candidates := self._candidates(tried, model)):
            not_serving = [
                replica
                for replica in self._members.values()
                if replica.health is Health.NOT_SERVING and replica not in tried
            ]
            await asyncio.gather(*(replica.check() for replica in not_serving))  # it may be serving again
            candidates = self._candidates(tried, model)
        if candidates:
            return best(candidates, session)
        raise self._failure(list(tried.values()))

    async def aclose(self) -> None:
        """Cancel running calls and disconnect. Later calls raise Unavailable."""
        self._is_resolved.set()
        self._resolving.cancel()
        await asyncio.wait([self._resolving])
        await asyncio.gather(*(replica.aclose() for replica in (*self._members.values(), *self._leaving.values())))

    def _failure(self, errors: Sequence[SemspecError]) -> SemspecError:
        """The last of `errors` of all replicas that were tried; it names the role, since clients see it."""
        if errors and not isinstance(errors[-1], Unavailable):
            return errors[-1]
        reason = f": {errors[-1].message}" if errors else ""
        if self.num_hung:
            return Unavailable(f"{self.num_hung} replicas of the {self._spec.role} hang, no other answers{reason}")
        return Unavailable(f"no replica of the {self._spec.role} answers{reason}")

    def _candidates(self, tried: Container[Replica], model: object) -> list[Replica]:
        return [
            replica
            for replica in self._usable()
            if replica not in tried and not replica.is_fenced and replica.may_serve(model)
        ]

    def _usable(self) -> list[Replica]:
        """Members that serve the model or were not checked yet. Changes the model when no member serves it."""
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
                _log.error("cannot call %s: %s", self._spec.service, error.message)
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
                self._members[address] = self._connect(address, name)

    def _connect(self, address: str, server_name: str) -> Replica:
        options = replace(self._options, server_name=server_name or self._options.server_name)
        return Replica(address, self._spec, options)

    async def _close_idle(self) -> None:
        for address, replica in list(self._leaving.items()):
            if not replica.num_in_flight:
                await replica.aclose()
                del self._leaving[address]

    def _report_mismatched(self) -> None:
        mismatched = self._members.keys() - {replica.address for replica in self._usable()}
        for address in mismatched - self._mismatched:
            _log.warning("%s at %s serves another model than the others; not used", self._spec.service, address)
        self._mismatched = mismatched
