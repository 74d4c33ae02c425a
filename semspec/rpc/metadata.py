"""Metadata and spans of a call: bearer token, request id, trace context."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from semspec import tracing
from semspec.errors import SemspecError, represent
from semspec.logging import request_id
from semspec.tracing import Attributes, Kind, Span, carried

AUTHORIZATION = "authorization"
"""Request: `Bearer <token>`."""
REQUEST_ID = "x-request-id"
"""Request: whose work this is, for the logs of both sides."""
PARAMETER = "semspec-parameter"
"""Trailer: the request field at fault, if one is."""

MAX_REQUEST_ID_LENGTH = 128


def call_metadata() -> tuple[tuple[str, str], ...]:
    """Whose work this task does: its request id, unless there is none or gRPC would refuse it, and its trace."""
    identifier = request_id.get()[:MAX_REQUEST_ID_LENGTH]
    named = identifier and identifier.isascii() and identifier.isprintable()
    return (*(((REQUEST_ID, identifier),) if named else ()), *carried().items())


_HANDSHAKE = "/Info"


@contextmanager
def client_span(method: object, request: object) -> Iterator[Span]:
    """The wait for a call, by the stub's `method`."""
    path: bytes = getattr(method, "_method", b"/")  # gRPC tells the name of a call to interceptors only
    with _rpc_span(path.decode(), "client", _sizes(request)) as opened:
        yield opened


@contextmanager
def server_span(method: str, request: object, carried: Mapping[str, str]) -> Iterator[Span]:
    """The work for a call, below the caller's span."""
    with _rpc_span(method, "server", _sizes(request), carried) as opened:
        yield opened


@contextmanager
def _rpc_span(method: str, kind: Kind, sizes: Attributes, carried: Mapping[str, str] | None = None) -> Iterator[Span]:
    if method.endswith(_HANDSHAKE):
        yield Span(None)
        return
    name = method.removeprefix("/")
    attributes = {"rpc.system.name": "grpc", "rpc.method": name, **sizes}
    with tracing.span(name, kind, attributes, carried) as opened:
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
            opened.set({"rpc.response.status_code": status})


def _sizes(request: object) -> Attributes:
    """How much a request is about, as far as its fields say."""
    segments = getattr(request, "segments", None) or getattr(request, "readings", None)
    proposal = getattr(request, "proposal", None)
    return {
        "semspec.num_segments": len(segments) if segments else None,
        "semspec.num_tokens": getattr(request, "num_tokens", None) if proposal is None else len(proposal.token_ids),
    }
