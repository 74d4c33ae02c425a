"""The gateway's connections: fewer than there are descriptors, and room for a new one whenever an old one is idle."""

import logging
import resource
from collections.abc import Callable, Iterator
from contextlib import suppress
from socket import (
    AF_INET6,
    AI_PASSIVE,
    IPPROTO_IPV6,
    IPV6_V6ONLY,
    SHUT_RDWR,
    SO_REUSEADDR,
    SOCK_STREAM,
    SOL_SOCKET,
    getaddrinfo,
    socket,
)
from time import monotonic
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 4096
"""Most connections, if there are descriptors for twice as many."""
MAX_BACKLOG = 128
"""Most connections that are accepted before any other event is handled."""
MAX_WAITING = 1024
"""Most connections that the kernel keeps until they are accepted; one more would be tried again after a second."""
GRACE_S = 0.1
"""Least time that a connection may be idle before it is closed for a new one."""
READ_BYTES = 64 * 1024
"""Most bytes that are read from a connection before others have their turn, and before the application sees any."""
LOG_INTERVAL_S = 1.0

_log = logging.getLogger(__name__)


def max_connections() -> int:
    """Return the most connections of this process: half of its descriptors. The services and Redis need some, too."""
    return min(MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)


class Connections:
    """All open connections; those without a request are in the order in which they became idle.

    A connection with a request that anybody may send counts as idle, too: such requests count for no owner, so clients
    that do not read the answers could keep all connections.
    """

    def __init__(self, is_open: Callable[[str, str], bool] = lambda method, path: False) -> None:
        """`is_open`: whether anybody may send a request with this method and path."""
        self.is_open = is_open
        self.limit = max_connections()
        self.backlog = max(1, min(MAX_BACKLOG, self.limit // 16))
        self._open: dict[int, Accepted] = {}
        self._idle: dict[int, Accepted] = {}
        self._logged_at = -LOG_INTERVAL_S

    def add(self, connection: "Accepted") -> None:
        """Count a new connection. One too many takes the place of an idle one, or is closed if there is none."""
        self._open[connection.fileno()] = self._idle[connection.fileno()] = connection
        if len(self._open) > self.limit:
            self.warn(f"{self.limit} connections are open, so idle ones are closed for new ones")
            self._idle.pop(next(iter(self._idle))).abort()

    @property
    def has_room(self) -> bool:
        """Whether a new connection would leave every idle one its time to send a request."""
        if len(self._open) < self.limit or not self._idle:
            return True
        return monotonic() >= next(iter(self._idle.values())).idle_since + GRACE_S

    def get(self, descriptor: int) -> "Accepted":
        """Return an open connection."""
        return self._open[descriptor]

    def remove(self, descriptor: int) -> None:
        """Forget a closed connection."""
        self._open.pop(descriptor, None)
        self._idle.pop(descriptor, None)

    def mark_busy(self, descriptor: int) -> None:
        """Keep a connection with a request open."""
        self._idle.pop(descriptor, None)

    def mark_idle(self, descriptor: int) -> None:
        """Note that a connection's request has just ended."""
        self._idle.pop(descriptor, None)
        if descriptor in self._open:
            self._idle[descriptor] = self._open[descriptor]
            self._idle[descriptor].idle_since = monotonic()

    def warn(self, message: str) -> None:
        """Log a warning, unless there was one a moment ago."""
        if monotonic() >= self._logged_at + LOG_INTERVAL_S:
            self._logged_at = monotonic()
            _log.warning("%s", message)


class Accepted(socket):
    """A client's connection."""

    def __init__(self, descriptor: int, connections: Connections) -> None:
        super().__init__(fileno=descriptor)
        self._connections = connections
        self.abort: Callable[[], None] = self._end
        """Closes the connection from outside."""
        self.idle_since = monotonic()
        connections.add(self)

    def _end(self) -> None:
        """Shut down a connection that has no transport yet. The event loop sees its end and closes it."""
        with suppress(OSError):  # its client has closed it
            self.shutdown(SHUT_RDWR)

    def close(self) -> None:
        self._connections.remove(self.fileno())
        super().close()


class Listener(socket):
    """A listening socket that accepts as many connections as there may be."""

    def __init__(self, family: int, connections: Connections) -> None:
        super().__init__(family, SOCK_STREAM)
        self._connections = connections

    def listen(self, backlog: int = MAX_WAITING) -> None:
        """Listen. The event loop's `backlog`, the connections that it accepts in a row, is not how many may wait."""
        super().listen(max(backlog, MAX_WAITING))

    def accept(self) -> tuple[socket, Any]:
        """Accept the next connection. Raises: BlockingIOError if there is none, or no room for it."""
        if not self._connections.has_room:  # it waits in the kernel's queue
            raise BlockingIOError
        connection, address = super().accept()
        return Accepted(connection.detach(), self._connections), address


def listen(host: str, port: int, connections: Connections) -> Iterator[socket]:
    """Yield sockets bound to all addresses of a host. Raises: OSError."""
    for family, _, _, _, address in getaddrinfo(host, port, type=SOCK_STREAM, flags=AI_PASSIVE):
        listener = Listener(family, connections)
        listener.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        if family == AF_INET6:
            listener.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, 1)
        listener.bind(address)
        yield listener


class Connection(H11Protocol):
    """uvicorn's protocol, which also tells whether the connection has a request."""

    def __init__(self, connections: Connections, **options: Any) -> None:
        super().__init__(**options)
        self._all = connections

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.max_size = READ_BYTES
        self._descriptor = transport.get_extra_info("socket").fileno()
        self._all.get(self._descriptor).abort = transport.abort

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._is_expendable:
            self._all.mark_busy(self._descriptor)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # A connection that closes is idle too: it waits until the client has read the response.
        if self._is_expendable:
            self._all.mark_idle(self._descriptor)
        else:  # the next request came before the response
            self._all.mark_busy(self._descriptor)

    @property
    def _is_expendable(self) -> bool:
        """Whether there is no request, or one that anybody may send."""
        if self.cycle is None or self.cycle.response_complete:
            return True
        return self._all.is_open(self.cycle.scope["method"], self.cycle.scope["path"])
