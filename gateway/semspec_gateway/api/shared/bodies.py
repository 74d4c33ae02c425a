"""Bodies of requests: the memory that all of them may take, what a body may contain, and parsing off the event loop.

Every limit follows from `max_body_bytes`, `max_concurrent` and `max_queued`; docs/security.md has the numbers.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from email.message import Message as Headers
from sys import getsizeof
from time import monotonic
from typing import Any, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from semspec.background import Background
from semspec.errors import InvalidField, InvalidRequest, Overloaded, Unavailable
from semspec_gateway.api.shared.errors import ClientGone
from semspec_gateway.api.shared.json_size import JsonSize, field_beyond, size_of
from semspec_gateway.connections import max_connections
from semspec_gateway.generation.admission import Admission, Limits
from semspec_gateway.settings import GatewaySettings

T = TypeVar("T")

SMALL_BYTES = 16 * 1024
"""A body of at most this size is parsed on the event loop, which takes a few milliseconds."""

VALUE_LENGTH, STRING_LENGTH, CONTAINER_LENGTH = 7, 32, 64
"""The largest body may hold one value for each 7 bytes, as many as token ids of six digits, one string for each 32
bytes, and one list or object for each 64 bytes."""

VALUE_BYTES, STRING_BYTES, CONTAINER_BYTES = 48, 64, 1024
"""Memory that each takes once the body is parsed and validated."""

OWNER_SHARE = 4
"""An owner's requests may take one in this many connections. Until it ends, each request counts as if it had that part
of the bytes. So two owners leave half of the connections to others."""

NUM_TURNS = 4
"""Owners of whom a large body is parsed or waits for the only thread that parses; each owner has one turn."""

COOLDOWN = 3
"""After a large body, its owner's turn lasts this many times longer than the parsing took. So the bodies of one owner
take at most a quarter of the time, even if all of them are refused."""


class Bodies:
    """The bodies of all requests."""

    def __init__(self, settings: GatewaySettings) -> None:
        max_requests = settings.max_concurrent + settings.max_queued
        self.max_body_bytes = settings.max_body_bytes
        self.max_bytes = settings.max_body_bytes * max_requests
        self.max_bytes_per_owner = self.max_bytes // 2
        self.least_bytes = self.max_bytes_per_owner // (max_connections() // OWNER_SHARE)
        self.max_size = JsonSize(
            *(
                settings.max_body_bytes // length
                for length in (STRING_LENGTH, CONTAINER_LENGTH, VALUE_LENGTH)
            )
        )
        self.num_bytes: Counter[str] = Counter()
        """Bytes that count at present, by owner."""
        self._turns = Admission(Limits(NUM_TURNS, 1, max_requests, settings.queue_timeout_s), None)
        self._thread = asyncio.Lock()
        self._cooldowns = Background()

    @contextmanager
    def hold(self, owner: str) -> Iterator["HeldBody"]:
        """Count the memory of a new request until the block ends. Raises: Overloaded, Unavailable."""
        body = HeldBody(self, owner)
        body.add(self.least_bytes)
        try:
            yield body
        finally:
            body.free()

    async def take_turn(self, owner: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `work` when no other large body is parsed, and let others have a turn before the next one of `owner`.

        Raises: Overloaded; what `work` raises.
        """
        turn, duration_s = AsyncExitStack(), 0.0
        await turn.enter_async_context(self._turns.admitted(owner, 1))
        try:
            async with self._thread:
                begin = monotonic()
                try:
                    return await work()
                finally:
                    duration_s = monotonic() - begin
        finally:
            # The request goes on meanwhile.
            self._cooldowns.spawn(_end_later(turn, COOLDOWN * duration_s))


async def _end_later(turn: AsyncExitStack, delay_s: float) -> None:
    """End an owner's turn after a delay."""
    async with turn:
        await asyncio.sleep(delay_s)


class HeldBody:
    """The body of one request, and the memory that counts for the request."""

    def __init__(self, bodies: Bodies, owner: str) -> None:
        self._bodies = bodies
        self._owner = owner
        self._num_bytes = 0

    def add(self, num_bytes: int) -> None:
        """Count more bytes. The only request of an owner, or of all owners, may exceed the limit.

        Raises: Overloaded when its owner holds too much; Unavailable when all owners together do.
        """
        bodies = self._bodies
        of_owner, of_all = bodies.num_bytes[self._owner], bodies.num_bytes.total()
        if of_owner > self._num_bytes and of_owner + num_bytes > bodies.max_bytes_per_owner:
            limit = f"the limit for one API key is {bodies.max_bytes_per_owner} bytes"
            raise Overloaded(
                f"too many or too large requests at once: {limit}",
                remedy="retry when others have ended",
            )
        if of_all > self._num_bytes and of_all + num_bytes > bodies.max_bytes:
            limit = f"the limit for all clients is {bodies.max_bytes} bytes"
            raise Unavailable(
                f"too many or too large requests at once: {limit}", remedy="retry later"
            )
        self._num_bytes += num_bytes
        bodies.num_bytes[self._owner] += num_bytes

    def replace_by_answer(self, num_bytes: int) -> None:
        """Count the answer instead of the body, which is no longer needed; at least what every request takes.

        Raises: Overloaded, Unavailable; the body does not count any more then either.
        """
        self._subtract(max(0, self._num_bytes - self._bodies.least_bytes))
        self.add(max(0, num_bytes - self._bodies.least_bytes))

    def free(self) -> None:
        """Count nothing any more."""
        self._subtract(self._num_bytes)

    def _subtract(self, num_bytes: int) -> None:
        self._num_bytes -= num_bytes
        self._bodies.num_bytes[self._owner] -= num_bytes

    async def parse(self, data: bytes, validate: Callable[[Any], T]) -> T:
        """Parse and validate a body.

        Raises: InvalidRequest; Overloaded, Unavailable; what `validate` raises.
        """
        if len(data) <= SMALL_BYTES:
            return validate(parse_json(decode(data)))
        return await self._bodies.take_turn(self._owner, lambda: self._parse_large(data, validate))

    async def _parse_large(self, data: bytes, validate: Callable[[Any], T]) -> T:
        text = await asyncio.to_thread(decode, data)
        self.add(await asyncio.to_thread(memory_of, text, self._bodies.max_size))
        return await asyncio.to_thread(lambda: validate(parse_json(text)))


class BodyRoute(APIRoute):
    """A route whose body is bounded, and parsed and validated off the event loop if it is large."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle, field = super().get_route_handler(), self.body_field
        if field is None:
            return handle

        def validate(value: Any) -> Any:
            validated, errors = field.validate(value, loc=("body",))
            if errors:
                raise RequestValidationError(errors)
            return validated

        async def handle_read(request: Request) -> Response:
            data = await _received(request)
            if not data or not _is_json(request.headers.get("content-type", "")):
                return await handle(_ReadRequest(request, data))
            value = await request.state.body.parse(data, validate)
            del data
            return await handle(_ReadRequest(request, b"{}", value))

        return handle_read


class _ReadRequest(Request):
    """A request whose body has been read, and is replaced by its validated value."""

    def __init__(self, request: Request, data: bytes, value: Any = None) -> None:
        super().__init__(request.scope, request.receive)
        self._data, self._value = data, value

    async def body(self) -> bytes:
        """Return bytes of which FastAPI only asks whether there are any, unless the body is not JSON."""
        return self._data

    async def json(self) -> Any:
        """Return the validated value, which FastAPI validates again in no time."""
        return self._value


async def _received(request: Request) -> bytes:
    """Read the whole body. Raises: ClientGone; what `BodyGuard` raises."""
    try:
        return b"".join([chunk async for chunk in request.stream()])
    except ClientDisconnect:
        raise ClientGone from None


def _is_json(content_type: str) -> bool:
    headers = Headers()
    headers["content-type"] = content_type
    is_json = headers.get_content_subtype() == "json" or headers.get_content_subtype().endswith(
        "+json"
    )
    return headers.get_content_maintype() == "application" and is_json


def decode(data: bytes) -> str:
    """Decode a body in any encoding of JSON. Raises: InvalidRequest."""
    try:
        return data.decode(json.detect_encoding(data), "surrogatepass")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"the body is not valid JSON: it is not {error.encoding} at byte {error.start}"
        ) from None


def parse_json(text: str) -> Any:
    """Parse a JSON text. Raises: InvalidRequest."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"the body is not valid JSON: {error.msg} at character {error.pos}"
        ) from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deep", remedy="send a flatter one") from None
    except ValueError as error:  # an integer of too many digits
        raise InvalidRequest(f"the body is not valid: {error}") from None


def memory_of(text: str, limit: JsonSize) -> int:
    """Return the bytes that a JSON text and its validated value take.

    Raises: InvalidRequest naming the field in which the text exceeds the limit.
    """
    size = size_of(text, limit.strings)
    if kind := size.excess(limit):
        field = field_beyond(text, limit)
        message = (
            f"the body holds {getattr(size, kind)} {kind}, and the limit is {getattr(limit, kind)}"
        )
        raise (InvalidField if field else InvalidRequest)(message, field, remedy="send fewer")
    parsed = (
        VALUE_BYTES * size.values + STRING_BYTES * size.strings + CONTAINER_BYTES * size.containers
    )
    return getsizeof(text) + parsed
