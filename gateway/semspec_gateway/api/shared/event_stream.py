"""A stream of server-sent events."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager

from fastapi.responses import Response
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from semspec.errors import SemspecError
from semspec.types import Drafted
from semspec_gateway.api.shared.errors import ClientGone, internal_error
from semspec_gateway.api.shared.formats import Format
from semspec_gateway.api.shared.middleware import (
    ShuttingDown,
    handed_over,
    unless_disconnected,
)
from semspec_gateway.generation.choice import ChoiceEvent, Ended, Place
from semspec_gateway.generation.generations import Run

GENERATION_ID = "x-generation-id"
"""Header with the generation's id, sent before the first chunk, to cancel the generation or attach to it."""

_LINE_ENDS = {ord(character): f"\\u{ord(character):04x}" for character in "\x85\u2028\u2029"}
"""JSON escapes of the characters that some clients take for the end of a line, for example Python's `splitlines`. The
other characters of this kind are control characters, which JSON always escapes."""

_log = logging.getLogger(__name__)


Opened = tuple[Run, Format]


class EventStream(Response):
    """A response of server-sent events.

    Nothing is sent before the first event, so that earlier errors get their own HTTP status. An event's id is the place
    of each choice up to which its text was sent. A client that attaches again sends the id back.
    """

    def __init__(
        self,
        id: str,
        opened: AbstractAsyncContextManager[Opened],
        send_timeout_s: float,
        seen: Sequence[Place] = (),
    ) -> None:
        """`seen` is what the client already has of each choice."""
        headers = {"cache-control": "no-store", "x-accel-buffering": "no", GENERATION_ID: id}
        super().__init__(media_type="text/event-stream", headers=headers)
        del self.headers["content-length"]
        self._id = id
        self._opened = opened
        self._send_timeout_s = send_timeout_s
        self._seen = seen
        self._has_started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_disconnected(receive, self._send_all(send))
        except ClientGone:
            _log.info("the client disconnected; its generations can be resumed")
        except ShuttingDown:
            error = handed_over(self._id)
            if not self._has_started:
                raise error from None
            await self._sent(send, self._failed(error), more=False)

    async def _send_all(self, send: Send) -> None:
        try:
            async with self._opened as (run, self._format):
                self._places = [Place(0)] * len(run.choices)
                self._num_running = len(run.choices)
                while (item := await run.next()) is not None:
                    if data := self._encoded(run, *item):
                        await self._sent(send, data)
                if self._format.last_line is not None:
                    await self._sent(send, f"data: {self._format.last_line}\n\n".encode())
        except ClientGone:
            raise
        except Exception as error:
            if not self._has_started:
                raise
            await self._sent(send, self._failed(error))
        await self._sent(send, b"", more=False)

    def _encoded(self, run: Run, index: int, event: ChoiceEvent) -> bytes:
        """The bytes to send for the next event; may be empty."""
        opening = () if self._has_started else range(len(run.choices))
        data = _events(chunk for choice in opening for chunk in self._format.opening(choice))
        if isinstance(event, Drafted):
            return data + _events(self._format.drafted(event))
        self._places[index] = event.place
        new = self._format.text(index, event)
        if event.place > (self._seen[index] if index < len(self._seen) else Place(0)):
            data += _events(new, "-".join(map(str, self._places)))
        if isinstance(event, Ended):
            self._num_running -= 1
            data += _events(
                self._format.closing(index, event, [] if self._num_running else run.choices)
            )
        return data

    def _failed(self, error: Exception) -> bytes:
        """The last event of a failed stream."""
        if isinstance(error, SemspecError):
            _log.warning("stream failed: %s", error)
        else:
            _log.error("stream failed", exc_info=error)
            error = internal_error()
        return _events([self._format.error(error)])

    async def _sent(self, send: Send, body: bytes, more: bool = True) -> None:
        """Send with a timeout: a client that stops reading must not block its generations.

        Raises: ClientGone.
        """
        if not self._has_started:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            self._has_started = True
        try:
            async with asyncio.timeout(self._send_timeout_s):
                await send({"type": "http.response.body", "body": body, "more_body": more})
        except TimeoutError:
            raise ClientGone from None


def _events(chunks: Iterable[BaseModel], last_id: str = "") -> bytes:
    """Chunks as events; the last one has `last_id`, if given."""
    lines = [
        f"{_name(chunk)}data: {chunk.model_dump_json().translate(_LINE_ENDS)}\n\n"
        for chunk in chunks
    ]
    if lines and last_id:
        lines[-1] = f"id: {last_id}\n{lines[-1]}"
    return "".join(lines).encode()


def _name(chunk: BaseModel) -> str:
    """The line with the name of an event that has a type; chunks have none, which OpenAI's clients would not read."""
    type = getattr(chunk, "type", None)
    return "" if type is None else f"event: {type}\n"
