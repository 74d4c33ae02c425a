"""The metadata keys that travel beside a call."""

from semspec.logging import request_id
from semspec.tracing import carried

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
