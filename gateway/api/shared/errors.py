"""Exception handlers and error bodies: OpenAI's format, or TGI's format on TGI's routes."""

import logging
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from semspec.errors import (
    Cancelled,
    Conflict,
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    Mismatch,
    NotFound,
    Overloaded,
    SemspecError,
    Unauthenticated,
    Unavailable,
    represent,
)
from semspec.gateway.api.shared.requests import is_known
from semspec.gateway.metrics import Metrics
from semspec.records import Body

CLIENT_GONE_STATUS = 499
"""nginx's status for a client that closed the connection early; only metrics and logs show it."""

UNAVAILABLE_RETRY_AFTER_S = 2
"""About as long as the gateway takes to detect that a service is back."""

TGI_PATHS = frozenset({"/", "/generate", "/generate_stream", "/info", "/tokenize"})

_HTTP_CODES = {400: "invalid_request", 404: "not_found", 405: "method_not_allowed", 413: "request_too_large"}


_VARIABLE = re.compile(r" \(SEMSPEC_\w+\)")
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


class ClientGone(Exception):
    """The client has closed the connection."""


def install_handlers(app: FastAPI, metrics: Metrics) -> None:
    """Map every exception that a route or a middleware may raise to a response."""

    def counted(error: SemspecError, request: Request) -> Response:
        metrics.refusals.labels(_code(error)).inc()
        return error_response(error, request.url.path)

    async def on_semspec_error(request: Request, error: Exception) -> Response:
        if isinstance(error, Unauthenticated):  # the client's key is valid: a service rejected the gateway's token
            error = Unavailable(
                "a service rejected this gateway's token; give it the services' token (SEMSPEC_SERVICE_TOKEN)"
            )
            _log.error("%s", error.message)
        return counted(error if isinstance(error, SemspecError) else InternalError(str(error)), request)

    async def on_validation_error(request: Request, error: Exception) -> Response:
        return counted(_invalid(error.errors() if isinstance(error, RequestValidationError) else ()), request)

    async def on_http_exception(request: Request, error: Exception) -> Response:
        http = error if isinstance(error, HTTPException) else HTTPException(500)
        metrics.refusals.labels(_http_code(http.status_code)).inc()
        return http_error_response(http, request.url.path)

    async def on_client_gone(request: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_GONE_STATUS)

    app.add_exception_handler(SemspecError, on_semspec_error)
    app.add_exception_handler(RequestValidationError, on_validation_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(ClientGone, on_client_gone)


def public(message: str) -> str:
    """`message` without the variables that an operator sets, which stand in parentheses and are for the log."""
    return _VARIABLE.sub("", message)


def error_body(error: SemspecError) -> Error:
    """OpenAI's error body, also the last event of a failed stream."""
    return _body(public(error.message), represent(error).openai_type, error.parameter, _code(error))


def tgi_error_body(error: SemspecError) -> TgiError:
    """TGI's error body; its clients choose the exception by `error_type`."""
    return _tgi_body(public(error.message), _tgi_status(error))


def error_response(error: SemspecError, path: str = "") -> Response:
    """The whole HTTP response, in the format of the API that `path` belongs to."""
    if path in TGI_PATHS:
        return _response(tgi_error_body(error), _tgi_status(error), _headers(error))
    return _response(error_body(error), represent(error).http_status, _headers(error))


def internal_error() -> InternalError:
    """The error a client gets for an unhandled exception: no details, only a reference to the log."""
    return InternalError("internal error; the server's log has the details under this response's x-request-id")


def _code(error: SemspecError) -> str:
    if isinstance(error, NotFound) and error.parameter == "model":
        return "model_not_found"
    return "cancelled" if isinstance(error, Cancelled) else represent(error).code


def _headers(error: SemspecError) -> dict[str, str] | None:
    if isinstance(error, Cancelled):
        return {"x-should-retry": "false"}  # OpenAI's clients retry after any 409
    if isinstance(error, Unauthenticated):
        return {"www-authenticate": "Bearer"}
    if isinstance(error, Overloaded):
        return {"retry-after": str(error.retry_after_s)}
    return {"retry-after": str(UNAVAILABLE_RETRY_AFTER_S)} if isinstance(error, Unavailable) else None


def _response(body: BaseModel, status: int, headers: Mapping[str, str] | None) -> Response:
    return Response(body.model_dump_json(), status, headers, "application/json")


def _body(message: str, openai_type: str, parameter: str | None, code: str) -> Error:
    return Error(error=ErrorDetail(message=message, type=openai_type, param=parameter, code=code))


def _tgi_status(error: SemspecError) -> int:
    """TGI has two kinds of errors beside overload: 422 for invalid requests and 424 for failed generations."""
    if isinstance(error, InvalidRequest):
        return HTTPStatus.UNPROCESSABLE_ENTITY
    if isinstance(error, Unavailable | DeadlineExceeded | Mismatch | Conflict):
        return HTTPStatus.FAILED_DEPENDENCY
    return represent(error).http_status


def _tgi_body(message: str, status: int) -> TgiError:
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return TgiError(error=message, error_type="overloaded")
    is_ours = status >= 500 or status == HTTPStatus.FAILED_DEPENDENCY
    return TgiError(error=message, error_type="generation" if is_ours else "validation")


def _http_code(status: int) -> str:
    return _HTTP_CODES.get(status, HTTPStatus(status).phrase.lower().replace(" ", "_"))


def http_error_response(error: HTTPException, path: str) -> Response:
    """The whole response to an error of HTTP itself, in the format of the API that `path` belongs to."""
    status, message = error.status_code, str(error.detail)
    if path in TGI_PATHS:
        return _response(_tgi_body(message, status), status, error.headers)
    openai_type = "invalid_request_error" if status < 500 else "server_error"
    return _response(_body(message, openai_type, None, _http_code(status)), status, error.headers)


def _invalid(details: Sequence[Any]) -> InvalidRequest:
    """The first validation error, with the field's name."""
    if not details:
        return InvalidRequest("the request is not valid")
    first = details[0]
    kind = str(first["type"])
    if kind == "json_invalid":
        return InvalidRequest(f"the body is not valid JSON: {first['ctx']['error']} at byte {first['loc'][-1]}")
    field = ".".join(name for name in map(str, first["loc"][1:]) if not name.startswith("<")) or None
    if kind == "extra_forbidden":
        return InvalidRequest(_unsupported(str(field)), field)
    return InvalidRequest(f"{field or 'the body'}: {first['msg'].removeprefix('Value error, ')}", field)


def _unsupported(field: str) -> str:
    name = field.rpartition(".")[2]
    if is_known(name):
        return f"{field} is not supported with this value; leave it out"
    return f"{field} is not a field of this API; leave it out"
