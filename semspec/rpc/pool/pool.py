"""The replicas of one service, and which of them gets a call.

Rendezvous hashing (Thaler and Ravishankar 1998) gives every session an order of the replicas of its own. The first one
gets its calls, and so holds its keys and values, unless it has too much to do (consistent hashing with bounded loads,
Mirrokni et al. 2016). A replica that comes or goes moves the sessions that have it first, and no others.
"""

import asyncio
import hashlib
import logging
import random
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import replace
from math import ceil
from statistics import fmean
from typing import Generic, Protocol, TypeVar

from semspec.errors import Overloaded, SemspecError, Unavailable
from semspec.rpc.pool.replica import Client, Health, PoolOptions, Replica, ServiceSpec
from semspec.rpc.pool.resolver import Lookup, Resolver, look_up

BALANCE = 1.25
"""How far above the mean a replica's load may rise for the sake of its sessions."""


class Candidate(Protocol):
    """What a choice goes by."""

    @property
    def address(self) -> str: ...

    @property
    def health(self) -> Health: ...

    @property
    def num_in_flight(self) -> int: ...

    @property
    def is_overloaded(self) -> bool:
        """Whether it said so a moment ago."""
        ...


K = TypeVar("K", bound=Candidate)


def best(candidates: Sequence[K], session: str) -> K:
    """The replica for the next call of `session`.

    Of the healthiest, the first in the session's order that is below `capacity`; without a session, the one with the
    fewest calls under way. Raises: ValueError when there are no candidates.
    """
    healthiest = min(candidate.health for candidate in candidates)
    equals = [candidate for candidate in candidates if candidate.health is healthiest]
    if len(equals) == 1:
        return equals[0]
    if not session:
        return min(equals, key=lambda one: (one.is_overloaded, one.num_in_flight, random.random()))
    room = capacity([one.num_in_flight for one in equals])
    return min(equals, key=lambda one: (one.is_overloaded or one.num_in_flight >= room, -weight(session, one.address)))


def capacity(loads: Sequence[int]) -> int:
    """Most calls under way at one replica, the next one included, given those at each. At least one has room."""
    return ceil(BALANCE * fmean(loads)) + 1


def weight(session: str, address: str) -> int:
    """How much a session is drawn to a replica: uniform in [0, 2^64)."""
    name = f"{session}\0{address}".encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")


C = TypeVar("C", bound=Client)
R = TypeVar("R")

ELSEWHERE = (Unavailable, Overloaded)
"""Errors after which another replica is asked."""

_log = logging.getLogger(__name__)


class Pool(Generic[C]):
    """Calls whichever replica is best. Construct within the running loop, end with `aclose`.

    All calls go to replicas of one model: the one that was served first, until no replica serves it any more.
    Raises: InvalidRequest when `addresses` is no address list.
    """

    def __init__(self, spec: ServiceSpec[C], addresses: str, options: PoolOptions, lookup: Lookup = look_up) -> None:
        self._spec, self._addresses, self._options = spec, addresses, options
        self._resolver = Resolver(addresses, lookup)
        self._members: dict[str, Replica[C]] = {}
        self._leaving: dict[str, Replica[C]] = {}
        """Those no longer to be found: they end their calls, then they are closed."""
        self._model: object = None
        self._mismatched: set[str] = set()
        self._has_looked = asyncio.Event()
        self._looking = asyncio.create_task(self._keep_looking())

    @property
    def num_replicas(self) -> int:
        """How many serve the model."""
        return sum(replica.health is Health.SERVING for replica in self._usable())

    @property
    def num_in_flight(self) -> int:
        """Calls under way."""
        return sum(replica.num_in_flight for group in (self._members, self._leaving) for replica in group.values())

    async def call(self, work: Callable[[C], Awaitable[R]], session: str = "", model: object = None) -> R:
        """The result of `work` by the best replica, or else by the next, each asked at most once; by none that serves
        another than `model`, if that is given.

        Raises: what `work` raises, the last of it when no replica could be reached.
        """
        tried: dict[Replica[C], SemspecError] = {}
        while True:
            replica = await self.choose(session, tried, model)
            try:
                with replica.counted():
                    async with replica.cut_off():
                        return await work(replica.client)
            except ELSEWHERE as error:
                replica.failed(error)
                tried[replica] = error

    async def choose(self, session: str, tried: Mapping[Replica[C], SemspecError], model: object = None) -> Replica[C]:
        """The best replica that was not tried, of those that serve `model` if that is given, or were never asked.

        Raises: the last error of those tried when there is no other, Unavailable when there is none at all.
        """
        await self._has_looked.wait()
        if not (candidates := self._candidates(tried, model)):
            away = [one for one in self._members.values() if one.health is Health.NOT_SERVING and one not in tried]
            await asyncio.gather(*(replica.look() for replica in away))  # it may be back already
            candidates = self._candidates(tried, model)
        if candidates:
            return best(candidates, session)
        raise list(tried.values())[-1] if tried else Unavailable(f"no replica at {self._addresses} answers")

    async def aclose(self) -> None:
        """Cancel what runs and disconnect. Later calls raise Unavailable."""
        self._has_looked.set()
        self._looking.cancel()
        await asyncio.wait([self._looking])
        await asyncio.gather(*(replica.aclose() for replica in (*self._members.values(), *self._leaving.values())))

    def _candidates(self, tried: Container[Replica[C]], model: object) -> list[Replica[C]]:
        return [
            replica
            for replica in self._usable()
            if replica not in tried and replica.health is not Health.UNREACHABLE and replica.may_serve(model)
        ]

    def _usable(self) -> list[Replica[C]]:
        """Members that serve the model, as far as is known; it is another one as soon as no member serves it."""
        replicas = list(self._members.values())
        serving = [replica for replica in replicas if replica.health is Health.SERVING]
        if serving and self._model not in {replica.model for replica in replicas if replica.model is not None}:
            self._model = serving[0].model
        return [replica for replica in replicas if replica.model in (None, self._model)]

    async def _keep_looking(self) -> None:
        while True:
            try:
                self._adopt(await self._resolver.look())
                await self._close_idle()
            except SemspecError as error:  # certificates that cannot be read; they may be there next time
                _log.error("cannot call %s: %s", self._spec.service, error.message)
            self._has_looked.set()
            self._report_mismatched()
            await asyncio.sleep(self._options.resolve_s)

    def _adopt(self, found: Mapping[str, str]) -> None:
        for address in self._members.keys() - found:
            self._leaving[address] = self._members.pop(address)
        for address, name in found.items():
            if address in self._leaving:
                self._members[address] = self._leaving.pop(address)
            elif address not in self._members:
                self._members[address] = self._connect(address, name)

    def _connect(self, address: str, name: str) -> Replica[C]:
        options = replace(self._options.client, server_name=name or self._options.client.server_name)
        return Replica(address, lambda: self._spec.connect(address, options), self._spec, self._options)

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
