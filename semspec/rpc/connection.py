"""A connection to a replica: one channel and its streams, and metadata, deadlines, errors and contexts of its calls.

A stream carries one call after another, since a stream for each costs two to four times as much. A call takes one that
has no call, or opens one, and gives it back after its last response; an error or a cancellation ends the stream.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc import aio
from grpc_health.v1 import health_pb2

from semspec.errors import DeadlineExceeded, InternalError, InvalidRequest, SemspecError
from semspec.rpc.calls import (
    AUTHORIZATION,
    MAX_MESSAGE_BYTES,
    ConnectionLost,
    call_metadata,
    client_span,
    decoding,
    encode,
    path_of,
    received,
    rpc_errors,
)
from semspec.rpc.contexts import TAIL, LastContexts, put_context
from semspec.rpc.tls import Certificates, channel_credentials
from semspec.types import Context

T = TypeVar("T")

MAX_IDLE = 128
"""Streams of a method that are kept for later calls."""
_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Options for calls to a service and for its replicas."""

    token: str | None = field(default=None, repr=False)
    """Bearer token, if the service requires one."""
    timeout_s: float = 300.0
    """Maximum wait for a response; of a call that generates segments, for each of them: 512 tokens on a busy CPU."""
    certificates: Certificates | None = None
    """For a service with TLS; None: no TLS."""
    server_name: str = ""
    """Name that the service's certificate must contain; empty: the host of its address."""
    resolve_s: float = 5.0
    """Interval between resolutions of host names."""
    health_interval_s: float = 2.0
    """Interval between health checks of a replica."""
    health_timeout_s: float = 5.0
    """Time without an answer to health checks after which a replica is unreachable."""


DEFAULT_OPTIONS = ClientOptions()


def open_channel(address: str, options: ClientOptions) -> aio.Channel:
    """Return a channel to `address`. It connects at the first call."""
    if options.certificates is None:
        return aio.insecure_channel(address, _channel_options())
    override = (
        (("grpc.ssl_target_name_override", options.server_name),) if options.server_name else ()
    )
    credentials = channel_credentials(options.certificates)
    return aio.secure_channel(address, credentials, (*_channel_options(), *override))


def _channel_options() -> Sequence[tuple[str, int | str]]:
    return (
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2_000),  # a restarted service is back within seconds
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),  # no limit on pings during a long prefill
        ("grpc.enable_http_proxy", 0),  # services are in the same network
    )


class _Stream:
    """A stream that carries one call after another."""

    def __init__(self, call: Any) -> None:
        self._call, self._number = call, 0

    @property
    def has_ended(self) -> bool:
        return bool(self._call.done())

    def cancel(self) -> None:
        self._call.cancel()

    async def send(self, request: Any) -> None:
        """Begin a call."""
        self._number += 1
        request.call.number = self._number
        with rpc_errors():
            await self._call.write(request)

    async def receive(self, timeout_s: float) -> Any:
        """Read the next response of the call. Raises: DeadlineExceeded when none comes within `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                with rpc_errors():
                    response = await self._call.read()
        except TimeoutError:
            raise DeadlineExceeded(f"no response within {timeout_s:g} s") from None
        if response is aio.EOF:
            raise ConnectionLost("the service ended the stream")
        with _checked_response():
            if received(response).call != self._number:
                raise InvalidRequest(
                    f"it belongs to call {response.call}, not to call {self._number}"
                )
        return response


class _Method:
    """A method of a service at the other end of a channel."""

    def __init__(self, channel: aio.Channel, method: MethodDescriptor) -> None:
        self.path = path_of(method)
        self.is_stream = method.client_streaming
        make: Any = channel.stream_stream if self.is_stream else channel.unary_unary
        self.open = make(
            self.path, encode, decoding(GetMessageClass(method.output_type).FromString)
        )
        """Sends a message, or opens a stream; the responses are for `received`."""
        self._idle: list[_Stream] = []

    def streams(self, metadata: Sequence[tuple[str, str]]) -> Iterator[tuple[_Stream, bool]]:
        """Streams to try a call on, and whether that is the last: one that has no call, then a new one."""
        while self._idle:
            if not (stream := self._idle.pop()).has_ended:
                yield stream, False
                break
        with rpc_errors():
            stream = _Stream(self.open(metadata=metadata))
        yield stream, True

    def keep(self, stream: _Stream) -> None:
        """Keep a stream whose call has ended for another."""
        if len(self._idle) < MAX_IDLE:
            self._idle.append(stream)
        else:
            stream.cancel()


class Connection:
    """The calls to one replica, each by the name of its method.

    Calls about a context carry the pieces that the service does not remember. Responses are parsed here, so that a
    malformed one is an error of the call.
    """

    def __init__(self, address: str, options: ClientOptions, service: ServiceDescriptor) -> None:
        self._options = options
        self._authorization = ((AUTHORIZATION, f"Bearer {options.token}"),) if options.token else ()
        self._channel = open_channel(address, options)
        self._methods = {
            method.name: _Method(self._channel, method)
            for method in (*service.methods, *_HEALTH.methods)
        }
        self._contexts = LastContexts()

    async def aclose(self) -> None:
        """Cancel running calls and disconnect. Later calls raise Unavailable."""
        await self._channel.close()

    async def is_serving(self, service: str) -> bool:
        """Return what a health check says of `service`, without a deadline."""
        with rpc_errors():
            response = await self._methods["Check"].open(
                health_pb2.HealthCheckRequest(service=service)
            )
        with _checked_response():
            return bool(received(response).status == health_pb2.HealthCheckResponse.SERVING)

    async def call(
        self, name: str, request: Any, read: Callable[[Any], T], context: Context | None = None
    ) -> T:
        """Make a call and return its response as parsed by `read`. `context`: see `stream`."""
        method = self._methods[name]
        if method.is_stream:
            [response] = [response async for response in self.stream(name, request, read, context)]
            return response
        with client_span(method.path, request) as opened, rpc_errors():
            metadata = (*self._authorization, *call_metadata(opened).items())
            response = await method.open(
                request, timeout=self._options.timeout_s, metadata=metadata
            )
        with _checked_response():
            return read(received(response))

    async def stream(
        self, name: str, request: Any, read: Callable[[Any], T], context: Context | None = None
    ) -> AsyncGenerator[T, None]:
        """Make a call and yield its responses as parsed by `read`.

        `context` is sent without the pieces that the service remembers, or whole if the service asks for it. Raises:
        DeadlineExceeded after `timeout_s` without a response.
        """
        for may_need_whole in self._put(context, request):
            is_first = True
            try:
                async with aclosing(self._responses(self._methods[name], request)) as responses:
                    async for response in responses:
                        if is_first and context is not None:
                            self._contexts.note(request.session, context)
                        is_first = False
                        with _checked_response():
                            item = read(response)
                        yield item
                return
            except SemspecError as error:
                if not (may_need_whole and is_first and _needs_whole_context(error)):
                    raise

    def _put(self, context: Context | None, request: Any) -> Iterator[bool]:
        """Fill in the part of the context that the service does not remember, then, if that is not all, the whole."""
        before = b""
        if context is not None:
            rest, before = self._contexts.rest(request.session, context)
            put_context(request, rest, before)
        yield bool(before)
        if context is not None:
            put_context(request, context)
            yield False

    async def _responses(self, method: _Method, request: Any) -> AsyncGenerator[Any, None]:
        with client_span(method.path, request) as opened:
            request.call.metadata.clear()
            request.call.metadata.update(call_metadata(opened))
            stream, response = await self._begin(method, request)
            has_ended = False
            try:
                while not has_ended:
                    has_ended = getattr(response, "is_last", True)
                    yield response
                    if not has_ended:
                        response = await stream.receive(self._options.timeout_s)
            finally:
                method.keep(stream) if has_ended else stream.cancel()

    async def _begin(self, method: _Method, request: Any) -> tuple[_Stream, Any]:
        """Begin a call; return its stream and first response. An idle stream may have lost its service."""
        for stream, is_last in method.streams(self._authorization):
            try:
                await stream.send(request)
                return stream, await stream.receive(self._options.timeout_s)
            except BaseException as error:
                stream.cancel()
                if is_last or not isinstance(error, ConnectionLost):
                    raise
        raise AssertionError("the last stream returns or raises")


def _needs_whole_context(error: SemspecError) -> bool:
    """Return whether the service does not remember the beginning of a context."""
    return isinstance(error, InternalError) and error.parameter == TAIL


@contextmanager
def _checked_response() -> Iterator[None]:
    """Raise InternalError for a malformed response: it is the service's defect, not the caller's."""
    try:
        yield
    except InvalidRequest as error:
        raise InternalError(f"malformed answer: {error.text}") from error
