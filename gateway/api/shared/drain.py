"""The end of a shutdown: requests that are still running when the drain time is over are answered, not cut off."""

import asyncio

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from semspec.errors import Unavailable
from semspec.gateway.api.shared.errors import UNAVAILABLE_RETRY_AFTER_S


class ShuttingDown(HTTPException):
    """The drain time is over. FastAPI turns errors while it reads a body into 400, except an `HTTPException`."""

    def __init__(self) -> None:
        headers = {"retry-after": str(UNAVAILABLE_RETRY_AFTER_S), "connection": "close"}
        super().__init__(503, "this gateway is shutting down; send the request to another", headers)


def handed_over(generation: str) -> Unavailable:
    """The error of a request whose generation, if it has begun, another gateway can continue."""
    return Unavailable(
        f"this gateway is shutting down; attach to generation {generation} at another: "
        f"GET /v1/generations/{generation}/events, or repeat the request if that is not found"
    )


class Drain:
    """Whether the time that running requests have at shutdown is over."""

    def __init__(self) -> None:
        self.is_over = False
        self._waiting: set[asyncio.Timeout] = set()

    def end(self) -> None:
        """Make every `receive`, running or later, raise ShuttingDown."""
        self.is_over = True
        for timeout in self._waiting:
            timeout.reschedule(0)

    async def receive(self, receive: Receive) -> Message:
        """The client's next message. Raises: ShuttingDown."""
        if self.is_over:
            raise ShuttingDown
        try:
            async with asyncio.timeout(None) as timeout:
                self._waiting.add(timeout)
                try:
                    return await receive()
                finally:
                    self._waiting.discard(timeout)
        except TimeoutError:
            raise ShuttingDown from None


class UntilDrained:
    """Middleware that ends the requests that wait for their client when the drain is over.

    Routes that generate always wait for the client, see `unless_disconnected`; the others take a moment.
    """

    def __init__(self, app: ASGIApp, drain: Drain) -> None:
        self._app = app
        self._drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_request = scope["type"] == "http"
        await self._app(scope, (lambda: self._drain.receive(receive)) if is_request else receive, send)
