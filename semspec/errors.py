"""The error classes, and one table of their gRPC and HTTP representations.

Only the calls in `semspec.rpc.calls`, the Python client and the gateway's error handler read the table.
"""

from dataclasses import dataclass
from json import dumps

MAX_MESSAGE, NUM_KEPT_AT_END = 1200, 300
"""Characters of a message. A longer one quotes a long value: what it is about stands before, the remedy after it."""


class SemspecError(Exception):
    """Base of all errors a caller may receive, in one line. `parameter` names the invalid request field, if any."""

    def __init__(self, message: str, parameter: str | None = None) -> None:
        message = one_line(message)
        if len(message) > MAX_MESSAGE:
            message = (
                f"{message[: MAX_MESSAGE - NUM_KEPT_AT_END - 5]} ... {message[-NUM_KEPT_AT_END:]}"
            )
        super().__init__(message)
        self.message = message
        self.parameter = parameter


class InvalidRequest(SemspecError):
    """The request is invalid; a retry cannot succeed."""


class ContextTooLong(InvalidRequest):
    """Prompt and requested tokens exceed the model's context window."""


class NotFound(SemspecError):
    """No such model, generation or session."""


class Conflict(SemspecError):
    """Another request uses or has changed the state this request depends on."""


class Cancelled(Conflict):
    """The generation was cancelled by a request."""


class Unauthenticated(SemspecError):
    """The bearer token is missing or wrong."""


class Overloaded(SemspecError):
    """No capacity; retry later. `retry_after_s` is the suggested delay."""

    def __init__(self, message: str, parameter: str | None = None, retry_after_s: int = 1) -> None:
        super().__init__(message, parameter)
        self.retry_after_s = retry_after_s


class Unavailable(SemspecError):
    """A service this request needs does not answer."""


class DeadlineExceeded(SemspecError):
    """The work took longer than its deadline."""


class Mismatch(SemspecError):
    """Models, tokenizers, probes or state conventions are incompatible."""


class InternalError(SemspecError):
    """A defect in semspec."""


@dataclass(frozen=True, slots=True)
class Representation:
    """External representation of an error: gRPC status name, HTTP status, and OpenAI's `type` and `code`."""

    grpc_status: str
    http_status: int
    openai_type: str
    code: str


TABLE: dict[type[SemspecError], Representation] = {
    InvalidRequest: Representation(
        "INVALID_ARGUMENT", 400, "invalid_request_error", "invalid_value"
    ),
    ContextTooLong: Representation(
        "OUT_OF_RANGE", 400, "invalid_request_error", "context_length_exceeded"
    ),
    NotFound: Representation("NOT_FOUND", 404, "invalid_request_error", "not_found"),
    Conflict: Representation("ABORTED", 409, "invalid_request_error", "conflict"),
    Cancelled: Representation("ABORTED", 409, "invalid_request_error", "cancelled"),
    Unauthenticated: Representation(
        "UNAUTHENTICATED", 401, "authentication_error", "invalid_api_key"
    ),
    Overloaded: Representation("RESOURCE_EXHAUSTED", 429, "rate_limit_error", "overloaded"),
    Unavailable: Representation("UNAVAILABLE", 503, "server_error", "service_unavailable"),
    DeadlineExceeded: Representation("DEADLINE_EXCEEDED", 504, "server_error", "timeout"),
    Mismatch: Representation("FAILED_PRECONDITION", 503, "server_error", "configuration_mismatch"),
    InternalError: Representation("INTERNAL", 500, "server_error", "internal_error"),
}


def represent(error: SemspecError) -> Representation:
    """The table's row for the error's class or its nearest base class."""
    return next((TABLE[row] for row in type(error).__mro__ if row in TABLE), TABLE[InternalError])


def from_grpc_status(status: str, message: str, parameter: str | None = None) -> SemspecError:
    """The error for a gRPC status; `InternalError` for an unknown status."""
    kind = next((kind for kind, row in TABLE.items() if row.grpc_status == status), None)
    return kind(message, parameter) if kind else InternalError(f"{status}: {message}")


def one_line(text: str) -> str:
    """`text`, with what terminals interpret escaped as in JSON: line breaks, other control characters, direction."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else dumps(character)[1:-1] for character in text
    )


def is_utf8(text: str) -> bool:
    """Whether `text` can be encoded: a lone surrogate cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
