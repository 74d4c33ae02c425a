"""Where the replicas of a service are: an address list, whose host names are looked up again and again."""

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


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One entry of an address list."""

    text: str
    host: str = ""
    """Name to look up; empty where the text is an address already."""
    port: int = 0


def parse_endpoints(addresses: str) -> tuple[Endpoint, ...]:
    """The entries of `host:port[,host:port...]`. Raises: InvalidRequest for what is neither that nor `unix:PATH`."""
    return tuple(_parse_endpoint(entry.strip()) for entry in addresses.split(","))


async def look_up(host: str, port: int) -> Sequence[str]:
    """What the system's resolver says."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Resolver:
    """The replicas at the entries of an address list, as they were found last."""

    def __init__(self, addresses: str, lookup: Lookup = look_up) -> None:
        self._lookup = lookup
        self._found: dict[Endpoint, Mapping[str, str]] = {
            endpoint: {endpoint.text: ""} for endpoint in parse_endpoints(addresses)
        }

    async def look(self) -> Mapping[str, str]:
        """Each replica's address, with the host name on its certificate where that is not in the address.

        A name that cannot be looked up stands for what it stood for before, in the beginning for one replica that
        gRPC is to find.
        """
        await asyncio.gather(*(self._look(endpoint) for endpoint in self._found if endpoint.host))
        return {address: name for found in self._found.values() for address, name in found.items()}

    async def _look(self, endpoint: Endpoint) -> None:
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT_S):
                ips = await self._lookup(endpoint.host, endpoint.port)
        except (OSError, UnicodeError) as error:  # a TimeoutError is an OSError
            _log.debug("cannot look up %s: %s", endpoint.host, error)
        else:
            self._found[endpoint] = _replicas(endpoint, ips)


def _replicas(endpoint: Endpoint, ips: Sequence[str]) -> Mapping[str, str]:
    """One replica an address. A host of two families has each replica twice, so that the larger one is taken; one
    with no more than an address of each is called by its name, at whichever answers."""
    families = [[ip for ip in ips if ip_address(ip).version == version] for version in (4, 6)]
    largest = max(families, key=len)
    if len(largest) <= 1:
        return {endpoint.text: ""}
    return {f"[{ip}]:{endpoint.port}" if ":" in ip else f"{ip}:{endpoint.port}": endpoint.host for ip in largest}


def _parse_endpoint(text: str) -> Endpoint:
    if text.startswith("unix:"):
        return Endpoint(text)
    host, _, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if not host or not port.isdecimal() or int(port) > MAX_PORT or (":" in host and not is_bracketed):
        raise InvalidRequest(f"{text!r} is no address: write host:port, [IPv6]:port or unix:PATH")
    return Endpoint(text) if _is_literal(host.strip("[]")) else Endpoint(text, host, int(port))


def _is_literal(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
