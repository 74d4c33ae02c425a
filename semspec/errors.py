"""The error classes, and one table of their gRPC and HTTP representations.

Only the calls in `semspec.rpc.calls`, the Python client and the gateway's error handler read the table.
"""

from copy import copy
from dataclasses import dataclass
from json import dumps
from typing import Self

MAX_MESSAGE, NUM_KEPT_AT_END = 1200, 300
"""Characters of a message. A longer one quotes a long value: what it is about stands before, what is wrong after it."""


class SemspecError(Exception):
    """Base of all errors a caller may receive. `str()` has all fields in one line for operators; `text` is for clients.

    `parameter`: the invalid request field, if any. `remedy`: how to solve the problem. `operator_hint`: the settings
    that solve it; it is not sent to clients.
    """

    def __init__(
        self,
        message: str,
        parameter: str | None = None,
        *,
        remedy: str = "",
        operator_hint: str = "",
    ) -> None:
        self.message = _bounded(message)
        super().__init__(self.message)
        self.parameter = parameter and _bounded(parameter)
        self.remedy = one_line(remedy)
        self.operator_hint = operator_hint

    @property
    def text(self) -> str:
        """Message and remedy."""
        return f"{self.message}; {self.remedy}" if self.remedy else self.message

    def __str__(self) -> str:
        return f"{self.text} ({self.operator_hint})" if self.operator_hint else self.text

    def about(self, parameter: str | None) -> Self:
        """Return the same error of another `parameter`. Each raise of one object would add to its traceback."""
        error = copy(self)
        error.parameter = parameter and _bounded(parameter)
        return error


class InvalidRequest(SemspecError):
    """The request is invalid; a retry cannot succeed."""


class InvalidField(InvalidRequest):
    """The value of one field is invalid: the text begins with the field's name, whatever the client calls it."""

    @property
    def text(self) -> str:
        return f"{self.parameter}: {super().text}"


class InvalidValue(InvalidRequest, ValueError):
    """A pydantic validator refuses a value. Pydantic takes it for the ValueError it expects, and keeps its fields."""


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
    """No capacity; retry later."""

    retry_after_s = 1
    """Suggested delay."""


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
    """Return the table's row for the error's class or its nearest base class."""
    return next((TABLE[row] for row in type(error).__mro__ if row in TABLE), TABLE[InternalError])


def from_grpc_status(status: str, message: str, parameter: str | None = None) -> SemspecError:
    """Return the error for a gRPC status; `InternalError` for an unknown status."""
    kind = next((kind for kind, row in TABLE.items() if row.grpc_status == status), None)
    if kind is InvalidRequest and parameter and message.startswith(f"{parameter}: "):
        return InvalidField(message.removeprefix(f"{parameter}: "), parameter)
    return kind(message, parameter) if kind else InternalError(f"{status}: {message}")


def one_line(text: str) -> str:
    """Escape as in JSON what a terminal interprets: line breaks, other control characters, text direction."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else dumps(character)[1:-1] for character in text
    )


def _bounded(text: str) -> str:
    """Return `text` in one line of at most `MAX_MESSAGE` characters."""
    text = one_line(text)
    if len(text) <= MAX_MESSAGE:
        return text
    return f"{text[: MAX_MESSAGE - NUM_KEPT_AT_END - 5]} ... {text[-NUM_KEPT_AT_END:]}"


def is_utf8(text: str) -> bool:
    """Return whether `text` can be encoded; a lone surrogate cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
