"""A connection to a service: one channel, and metadata, deadlines, errors and contexts of its calls."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import TypeVar

import grpc
from grpc import aio
from opentelemetry.trace import Span

from semspec.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    Mismatch,
    SemspecError,
    Unavailable,
    from_grpc_status,
)
from semspec.rpc.calls import AUTHORIZATION, PARAMETER, call_metadata, client_span, decoded_response
from semspec.rpc.channel import ClientOptions, open_channel
from semspec.rpc.contexts import TAIL, LastContexts
from semspec.types import Context

Q = TypeVar("Q")
R = TypeVar("R")

_log = logging.getLogger(__name__)


class Remote:
    """A channel, and metadata, deadline and error mapping of its calls."""

    def __init__(self, address: str, options: ClientOptions) -> None:
        self._options = options
        self._authorization = ((AUTHORIZATION, f"Bearer {options.token}"),) if options.token else ()
        self._channel = open_channel(address, options)

    @property
    def channel(self) -> aio.Channel:
        """The channel of the calls, also used for health checks."""
        return self._channel

    async def aclose(self) -> None:
        """Cancel running calls and disconnect. Later calls raise Unavailable."""
        await self._channel.close()

    def metadata(self, opened: Span) -> tuple[tuple[str, str], ...]:
        """Authorization, trace context and request id of a call."""
        return self._authorization + call_metadata(opened)

    async def call(self, method: aio.UnaryUnaryMultiCallable[Q, R], request: Q) -> R:
        """The response of a unary call."""
        with client_span(method, request) as opened, rpc_errors():
            response = await method(request, timeout=self._options.call_timeout_s, metadata=self.metadata(opened))
            return decoded_response(response)


class RemoteModel(Remote):
    """A connection whose calls are about contexts: they carry what the service does not remember of them."""

    def __init__(self, address: str, options: ClientOptions) -> None:
        super().__init__(address, options)
        self._contexts = LastContexts()

    async def call_about(
        self,
        method: aio.UnaryUnaryMultiCallable[Q, R],
        session: str,
        context: Context,
        request_of: Callable[[Context, bytes], Q],
    ) -> R:
        """A call that carries what is new in the context; or all of it, if the service asks for that."""
        rest, before = self._contexts.rest(session, context)
        try:
            response = await self.call(method, encoded(request_of, rest, before))
        except SemspecError as error:
            if not before or not _wants_whole(error):
                raise
            response = await self.call(method, encoded(request_of, context, b""))
        self._contexts.note(session, context)
        return response

    async def stream_about(
        self,
        method: aio.UnaryStreamMultiCallable[Q, R],
        session: str,
        context: Context,
        request_of: Callable[[Context, bytes], Q],
    ) -> AsyncGenerator[R, None]:
        """The responses of a stream, otherwise as `call_about`. Raises: DeadlineExceeded when none arrives within
        `idle_timeout_s`."""
        for rest, before in (self._contexts.rest(session, context), (context, b"")):
            is_first = True
            try:
                async with aclosing(self._stream(method, encoded(request_of, rest, before))) as responses:
                    async for response in responses:
                        if is_first:
                            self._contexts.note(session, context)
                            is_first = False
                        yield response
                return
            except SemspecError as error:
                if not (before and is_first and _wants_whole(error)):
                    raise

    async def _stream(self, method: aio.UnaryStreamMultiCallable[Q, R], request: Q) -> AsyncGenerator[R, None]:
        with client_span(method, request) as opened:
            with rpc_errors():
                call = method(request, metadata=self.metadata(opened))
            try:
                responses = aiter(call)
                while (response := await self._next(responses)) is not None:
                    yield response
            finally:
                call.cancel()

    async def _next(self, responses: AsyncIterator[R]) -> R | None:
        timeout_s = self._options.idle_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                with rpc_errors():
                    response = await anext(responses, None)
                    return None if response is None else decoded_response(response)
        except TimeoutError:
            raise DeadlineExceeded(f"no segment within {timeout_s:g} s") from None


def from_rpc_error(error: aio.AioRpcError) -> SemspecError:
    """The error a service raised, or the equivalent of a transport failure."""
    details, trailer = error.details() or error.code().name, error.trailing_metadata() or ()
    if error.code() is grpc.StatusCode.CANCELLED:
        return Unavailable(f"the service ended the call: {details}")
    if error.code() is grpc.StatusCode.UNAUTHENTICATED:  # the operator's mistake, not the end user's
        return Unavailable(f"the service refuses this caller: {details}")
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return Mismatch(f"the service has an older version of the gRPC contract ({details}); upgrade it")
    parameters = [str(value) for key, value in trailer if key == PARAMETER]
    if error.code() is grpc.StatusCode.UNAVAILABLE and not parameters:  # of the transport, whose details have addresses
        _log.debug("a connection failed: %s", details)
        return Unavailable("the connection failed")
    parameter = parameters[0] or None if parameters else None
    if error.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.ABORTED):  # no service answers so to the end
        return InternalError(f"{error.code().name} is not a status of the gRPC contract: {details}", parameter)
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
        return InvalidRequest(f"too large for the link: {details}; send less")
    return from_grpc_status(error.code().name, details, parameter)


def _wants_whole(error: SemspecError) -> bool:
    """Whether the service answers that it does not remember the beginning of a context, or, an older one, that it got
    no context."""
    return (isinstance(error, InternalError) and error.parameter == TAIL) or error.parameter == "context"


@contextmanager
def rpc_errors() -> Iterator[None]:
    """Map gRPC errors to `SemspecError`."""
    try:
        yield
    except aio.AioRpcError as error:
        raise from_rpc_error(error) from error
    except aio.UsageError as error:
        raise Unavailable(f"this client is closed: {error}") from error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise Unavailable(
            "this client was closed during the call"
        ) from None  # gRPC cancels its calls, not the tasks that await them


def encoded(request_of: Callable[[Context, bytes], Q], rest: Context, before: bytes) -> Q:
    with encodable_request():
        return request_of(rest, before)


@contextmanager
def encodable_request() -> Iterator[None]:
    """Raise InvalidRequest for values protobuf cannot encode, such as a negative count or a lone surrogate."""
    try:
        yield
    except ValueError as error:
        raise InvalidRequest(f"cannot be sent: {error}") from error


@contextmanager
def checked_response() -> Iterator[None]:
    """Raise InternalError for a malformed response: it is the service's defect, not the caller's."""
    try:
        yield
    except InvalidRequest as error:
        raise InternalError(f"malformed answer: {error.message}") from error
