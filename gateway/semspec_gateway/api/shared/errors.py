"""Exception handlers and error bodies: OpenAI's format, or TGI's format on TGI's routes."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from semspec.errors import (
    Cancelled,
    Conflict,
    DeadlineExceeded,
    InternalError,
    InvalidField,
    InvalidRequest,
    InvalidValue,
    Mismatch,
    NotFound,
    Overloaded,
    Representation,
    SemspecError,
    Unauthenticated,
    Unavailable,
    represent,
)
from semspec.records import Body
from semspec_gateway.api.shared.requests import is_known
from semspec_gateway.metrics import Metrics

CLIENT_GONE_STATUS = 499
"""nginx's status for a client that closed the connection early; only metrics and logs show it."""

UNAVAILABLE_RETRY_AFTER_S = 2
"""About as long as the gateway takes to detect that a service is back."""

TGI_PATHS = frozenset({"/", "/generate", "/generate_stream", "/info", "/tokenize"})

_HTTP_CODES = {
    400: "invalid_request",
    404: "not_found",
    405: "method_not_allowed",
    413: "request_too_large",
}
_log = logging.getLogger(__name__)


class ErrorDetail(Body):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None
    """The invalid field, as a dotted path."""
    code: str


class Error(Body):
    """Error body of every route but TGI's."""

    error: ErrorDetail


class TgiError(Body):
    """Error body of TGI's routes."""

    error: str
    error_type: Literal["validation", "generation", "overloaded"]


class HttpError(SemspecError):
    """An error of HTTP itself, such as an unknown path."""

    def __init__(self, error: HTTPException) -> None:
        super().__init__(str(error.detail))
        status = error.status_code
        code = _HTTP_CODES.get(status, HTTPStatus(status).phrase.lower().replace(" ", "_"))
        openai_type = "invalid_request_error" if status < 500 else "server_error"
        self.row, self.headers = Representation("", status, openai_type, code), error.headers


class ClientGone(Exception):
    """The client has closed the connection."""


def install_handlers(app: FastAPI, metrics: Metrics) -> None:
    """Map every exception that a route or a middleware may raise to a response."""

    def counted(error: SemspecError, request: Request) -> Response:
        metrics.refusals.labels(_row(error).code).inc()
        return error_response(error, request.url.path)

    @app.exception_handler(SemspecError)
    async def on_semspec_error(request: Request, error: SemspecError) -> Response:
        # A service has rejected the gateway's token; the client's own key is valid.
        if isinstance(error, Unauthenticated):
            error = Unavailable(
                "a service rejected this gateway's token",
                remedy="give it the services' token",
                operator_hint="SEMSPEC_SERVICE_TOKEN",
            )
            _log.error("%s", error)
        return counted(error, request)

    @app.exception_handler(RequestValidationError)
    async def on_validation_error(request: Request, error: RequestValidationError) -> Response:
        return counted(_invalid(error.errors()), request)

    @app.exception_handler(HTTPException)
    async def on_http_exception(request: Request, error: HTTPException) -> Response:
        return counted(HttpError(error), request)

    @app.exception_handler(ClientGone)
    async def on_client_gone(request: Request, error: ClientGone) -> Response:
        return Response(status_code=CLIENT_GONE_STATUS)


def error_body(error: SemspecError) -> Error:
    """OpenAI's error body, also the last event of a failed stream."""
    row = _row(error)
    return Error(
        error=ErrorDetail(
            message=error.text, type=row.openai_type, param=error.parameter, code=row.code
        )
    )


def tgi_error_body(error: SemspecError) -> TgiError:
    """TGI's error body; its clients choose the exception by `error_type`."""
    status = _tgi_status(error)
    kind: Literal["validation", "generation", "overloaded"] = "validation"
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        kind = "overloaded"
    elif status >= 500 or status == HTTPStatus.FAILED_DEPENDENCY:
        kind = "generation"
    return TgiError(error=error.text, error_type=kind)


def error_response(error: SemspecError, path: str = "") -> Response:
    """The whole HTTP response, in the format of the API that `path` belongs to."""
    is_tgi = path in TGI_PATHS
    body = tgi_error_body(error) if is_tgi else error_body(error)
    status = _tgi_status(error) if is_tgi else _row(error).http_status
    return Response(body.model_dump_json(), status, _headers(error), "application/json")


def internal_error() -> InternalError:
    """The error a client gets for an unhandled exception: no details, only a reference to the log."""
    return InternalError(
        "internal error",
        remedy="the server's log has the details under this response's x-request-id",
    )


def _row(error: SemspecError) -> Representation:
    if isinstance(error, HttpError):
        return error.row
    if isinstance(error, NotFound) and error.parameter == "model":
        return replace(represent(error), code="model_not_found")
    return represent(error)


def _headers(error: SemspecError) -> Mapping[str, str] | None:
    if isinstance(error, HttpError):
        return error.headers
    if isinstance(error, Cancelled):
        return {"x-should-retry": "false"}  # OpenAI's clients retry after any 409
    if isinstance(error, Unauthenticated):
        return {"www-authenticate": "Bearer"}
    if isinstance(error, Overloaded):
        return {"retry-after": str(error.retry_after_s)}
    return (
        {"retry-after": str(UNAVAILABLE_RETRY_AFTER_S)} if isinstance(error, Unavailable) else None
    )


def _tgi_status(error: SemspecError) -> int:
    """TGI has two kinds of errors beside overload: 422 for invalid requests and 424 for failed generations."""
    if isinstance(error, InvalidRequest):
        return HTTPStatus.UNPROCESSABLE_ENTITY
    if isinstance(error, Unavailable | DeadlineExceeded | Mismatch | Conflict):
        return HTTPStatus.FAILED_DEPENDENCY
    return _row(error).http_status


def _invalid(details: Sequence[Any]) -> InvalidRequest:
    """The first validation error, with the field's name."""
    first = details[0]
    field = (
        ".".join(name for name in map(str, first["loc"][1:]) if not name.startswith("<")) or None
    )
    if first["type"] == "extra_forbidden":
        known = is_known(str(field).rpartition(".")[2])
        reason = "is not supported with this value" if known else "is not a field of this API"
        return InvalidRequest(f"{field} {reason}", field, remedy="leave it out")
    error = first["ctx"]["error"] if first["type"] == "value_error" else first["msg"]
    message, remedy = str(error), ""
    if isinstance(error, InvalidValue):
        message, remedy = error.message, error.remedy
    if field is None:
        return InvalidRequest(f"the body: {message}", remedy=remedy)
    return InvalidField(message, field, remedy=remedy)
