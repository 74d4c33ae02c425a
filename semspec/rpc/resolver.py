"""Address lists, and the replicas that they resolve to."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from semspec.errors import InvalidRequest

Lookup = Callable[[str, int], Awaitable[Sequence[str]]]
"""(host, port) -> its IP addresses. Raises: OSError when there are none."""

LOOKUP_TIMEOUT_S = 5.0
MAX_PORT = 65535

_log = logging.getLogger(__name__)


async def look_up(host: str, port: int) -> Sequence[str]:
    """Resolve a host with the system's resolver."""
    infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in infos))


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One entry of an address list."""

    text: str
    host: str = ""
    """Host name to resolve; empty if the text is an IP address or a Unix socket."""
    port: int = 0


def parse_endpoints(addresses: str) -> tuple[Endpoint, ...]:
    """Parse `host:port[,host:port...]`; an entry may also be `unix:PATH`. Raises: InvalidRequest."""
    return tuple(_parse_endpoint(entry.strip()) for entry in addresses.split(","))


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
        raise InvalidRequest(
            f"{text!r} is not an address: write host:port, [IPv6]:port or unix:PATH"
        )
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return Endpoint(text, host, int(port))
    return Endpoint(text)


class Resolver:
    """Resolves an address list to replicas and keeps the last result."""

    def __init__(self, addresses: str, lookup: Lookup = look_up) -> None:
        self._lookup = lookup
        self._replicas: dict[Endpoint, Mapping[str, str]] = {
            endpoint: {endpoint.text: ""} for endpoint in parse_endpoints(addresses)
        }

    async def resolve(self) -> Mapping[str, str]:
        """Map the address of each replica to the host name on its certificate; empty if the address has that name.

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
    """Return one replica per IP address.

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
