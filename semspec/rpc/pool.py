"""The replicas of one service, at the addresses that its address list resolves to."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from ipaddress import ip_address
from operator import attrgetter
from typing import TypeVar

from semspec.background import keep_running
from semspec.errors import InvalidRequest, SemspecError, Unavailable
from semspec.rpc.connection import ClientOptions, Connection
from semspec.rpc.replica import Health, Replica, ServiceSpec, best

R = TypeVar("R")

Lookup = Callable[[str, int], Awaitable[Sequence[str]]]
"""(host, port) -> its IP addresses. Raises: OSError when there are none."""

LOOKUP_TIMEOUT_S = 5.0
MAX_PORT = 65535

_log = logging.getLogger(__name__)


async def look_up(host: str, port: int) -> Sequence[str]:
    """Resolve a host with the system's resolver."""
    infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in infos))


class Pool:
    """Sends each call to the best replica. Construct within the running loop, close with `aclose`.

    All calls go to replicas of one model: the first model served, until no replica serves it.
    Raises: InvalidRequest when `addresses` is no address list.
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
        """Segments whose states came whole, since the replica did not hold the projection; clients count them."""
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
        """The result of `work` from the best replica; on errors in `RETRIABLE_ERRORS`, tries each other replica once.

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
            await asyncio.gather(
                *(replica.check() for replica in unknown)
            )  # it may be serving by now
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
                "%s at %s serves another model than the others; not used",
                self._spec.service,
                address,
            )
        self._mismatched = mismatched


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One entry of an address list."""

    text: str
    host: str = ""
    """Host name to resolve; empty if the text is an IP address or a Unix socket."""
    port: int = 0


def parse_endpoints(addresses: str) -> tuple[Endpoint, ...]:
    """The entries of `host:port[,host:port...]`. Raises: InvalidRequest for one that is not that, or `unix:PATH`."""
    return tuple(_parse_endpoint(entry.strip()) for entry in addresses.split(","))


class Resolver:
    """Resolves an address list to replicas and keeps the last result."""

    def __init__(self, addresses: str, lookup: Lookup = look_up) -> None:
        self._lookup = lookup
        self._replicas: dict[Endpoint, Mapping[str, str]] = {
            endpoint: {endpoint.text: ""} for endpoint in parse_endpoints(addresses)
        }

    async def resolve(self) -> Mapping[str, str]:
        """Address of each replica -> host name on its certificate; empty if the address contains that name.

        A name that cannot be resolved keeps its last result; before the first result, gRPC resolves it as one replica.
        """
        await asyncio.gather(
            *(self._resolve(endpoint) for endpoint in self._replicas if endpoint.host)
        )
        return {
            address: name
            for replicas in self._replicas.values()
            for address, name in replicas.items()
        }

    async def _resolve(self, endpoint: Endpoint) -> None:
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT_S):
                ips = await self._lookup(endpoint.host, endpoint.port)
        except (OSError, UnicodeError) as error:  # TimeoutError is an OSError
            _log.debug("cannot look up %s: %s", endpoint.host, error)
        else:
            self._replicas[endpoint] = _replicas(endpoint, ips)


def _replicas(endpoint: Endpoint, ips: Sequence[str]) -> Mapping[str, str]:
    """One replica per IP address.

    A dual-stack host has each replica once per address family, so only the family with more addresses is used. A host
    with at most one address per family is one replica, called by its name.
    """
    families = [[ip for ip in ips if ip_address(ip).version == version] for version in (4, 6)]
    largest = max(families, key=len)
    if len(largest) <= 1:
        return {endpoint.text: ""}
    return {
        f"[{ip}]:{endpoint.port}" if ":" in ip else f"{ip}:{endpoint.port}": endpoint.host
        for ip in largest
    }


def _parse_endpoint(text: str) -> Endpoint:
    if text.startswith("unix:"):
        return Endpoint(text)
    host, _, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if (
        not host
        or not port.isdecimal()
        or int(port) > MAX_PORT
        or (":" in host and not is_bracketed)
    ):
        raise InvalidRequest(f"{text!r} is no address: write host:port, [IPv6]:port or unix:PATH")
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return Endpoint(text, host, int(port))
    return Endpoint(text)
