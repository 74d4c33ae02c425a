"""Every error leaves the gateway in OpenAI's shape, through here."""

import json
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from gateway.disconnect import ClientGone
from gateway.metrics import Metrics
from gateway.schemas import is_known_field
from semspec.errors import InternalError, InvalidRequest, NotFound, Overloaded, SemspecError, represent
from semspec.trace import Json

CLIENT_GONE_STATUS = 499
"""Nginx's word for a client that did not wait; seen in metrics and logs only."""

RETRY_AFTER_S = 1

_HTTP_CODES = {400: "invalid_request", 404: "not_found", 405: "method_not_allowed", 413: "request_too_large"}


def install_handlers(app: FastAPI, metrics: Metrics) -> None:
    """Map every exception a route or a middleware may raise."""

    async def on_semspec_error(request: Request, error: Exception) -> Response:
        known = error if isinstance(error, SemspecError) else InternalError(str(error))
        return _counted(error_response(known), metrics)

    async def on_validation_error(request: Request, error: Exception) -> Response:
        details = error.errors() if isinstance(error, RequestValidationError) else ()
        return _counted(error_response(_invalid(details)), metrics)

    async def on_http_exception(request: Request, error: Exception) -> Response:
        http = error if isinstance(error, HTTPException) else HTTPException(500)
        return _counted(_http_response(http), metrics)

    async def on_client_gone(request: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_GONE_STATUS)

    app.add_exception_handler(SemspecError, on_semspec_error)
    app.add_exception_handler(RequestValidationError, on_validation_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(ClientGone, on_client_gone)


def error_body(error: SemspecError) -> Json:
    """OpenAI's error object, also the last event of a stream that broke."""
    row = represent(error)
    code = "model_not_found" if isinstance(error, NotFound) and error.parameter == "model" else row.code
    return _body(error.message, row.openai_type, error.parameter, code)


def error_response(error: SemspecError) -> JSONResponse:
    """The same as a whole response."""
    headers = {"retry-after": str(RETRY_AFTER_S)} if isinstance(error, Overloaded) else None
    return JSONResponse(error_body(error), represent(error).http_status, headers)


def internal_error() -> InternalError:
    """What a client learns of a defect: nothing but where to look."""
    return InternalError("internal error; the server's log has the details under this response's x-request-id")


def _body(message: str, openai_type: str, parameter: str | None, code: str) -> Json:
    return {"error": {"message": message, "type": openai_type, "param": parameter, "code": code}}


def _counted(response: JSONResponse, metrics: Metrics) -> JSONResponse:
    metrics.refusal(json.loads(bytes(response.body))["error"]["code"])
    return response


def _http_response(error: HTTPException) -> JSONResponse:
    status = error.status_code
    code = _HTTP_CODES.get(status, HTTPStatus(status).phrase.lower().replace(" ", "_"))
    openai_type = "invalid_request_error" if status < 500 else "server_error"
    return JSONResponse(_body(str(error.detail), openai_type, None, code), status, error.headers)


def _invalid(details: Sequence[Any]) -> InvalidRequest:
    """The first fault of a body, in words that name the field."""
    if not details:
        return InvalidRequest("the request is not valid")
    first = details[0]
    kind = str(first["type"])
    if kind == "json_invalid":
        return InvalidRequest(f"the body is not valid JSON: {first['ctx']['error']} at byte {first['loc'][-1]}")
    field = ".".join(step for step in map(str, first["loc"][1:]) if step not in ("<text>", "<parts>")) or None
    if kind == "extra_forbidden":
        return InvalidRequest(_unsupported(str(field)), field)
    return InvalidRequest(f"{field or 'the body'}: {first['msg'].removeprefix('Value error, ')}", field)


def _unsupported(field: str) -> str:
    if is_known_field(field.rpartition(".")[2]):
        return f"{field} is not supported with this value; leave it out"
    return f"{field} is not a field this server knows; leave it out"
