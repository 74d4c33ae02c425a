"""Metadata and spans of a call: bearer token, request id, trace context."""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from semspec.errors import SemspecError, represent
from semspec.observability import Attributes, detached_span, request_id

AUTHORIZATION = "authorization"
"""Request: `Bearer <token>`."""
REQUEST_ID = "x-request-id"
"""Request: whose work this is, for the logs of both sides."""
PARAMETER = "semspec-parameter"
"""Trailer: the request field at fault, if one is."""

MAX_REQUEST_ID_LENGTH = 128


def call_metadata(opened: Span) -> tuple[tuple[str, str], ...]:
    """Whose work a call is: its request id, unless there is none or gRPC would refuse it, and its span's trace."""
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier, set_span_in_context(opened))
    identifier = request_id.get()[:MAX_REQUEST_ID_LENGTH]
    named = identifier and identifier.isascii() and identifier.isprintable()
    return (*(((REQUEST_ID, identifier),) if named else ()), *carrier.items())


_HANDSHAKE = "/Info"


def client_span(method: object, request: object) -> AbstractContextManager[Span]:
    """The wait for a call, by the stub's `method`."""
    path: bytes = getattr(method, "_method", b"/")  # gRPC tells the name of a call to interceptors only
    return _rpc_span(path.decode(), SpanKind.CLIENT, request, None)


def server_span(method: str, request: object, caller: Context) -> AbstractContextManager[Span]:
    """The work for a call, below the caller's span."""
    return _rpc_span(method, SpanKind.SERVER, request, caller)


@contextmanager
def _rpc_span(method: str, kind: SpanKind, request: object, parent: Context | None) -> Iterator[Span]:
    if method.endswith(_HANDSHAKE):
        yield INVALID_SPAN
        return
    name = method.removeprefix("/")
    attributes = {"rpc.system.name": "grpc", "rpc.method": name, **_sizes(request)}
    with detached_span(name, kind, attributes, parent) as opened:
        status = "OK"
        try:
            yield opened
        except (asyncio.CancelledError, GeneratorExit):
            status = "CANCELLED"
            raise
        except Exception as error:
            status = represent(error).grpc_status if isinstance(error, SemspecError) else "INTERNAL"
            raise
        finally:
            opened.set_attribute("rpc.response.status_code", status)


def _sizes(request: object) -> Attributes:
    """How much a request is about, as far as its fields say."""
    segments = getattr(request, "segments", None) or getattr(request, "readings", None)
    proposal = getattr(request, "proposal", None)
    return {
        "semspec.num_segments": len(segments) if segments else None,
        "semspec.num_tokens": getattr(request, "num_tokens", None) if proposal is None else len(proposal.token_ids),
    }
