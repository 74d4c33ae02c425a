"""The OpenAPI responses of each route, for its decorator; `document.py` adds those that every route has."""

from typing import Any

from pydantic import BaseModel

from semspec.gateway.api.openai.answers import ChatCompletion, ChatCompletionChunk, TextCompletion, TextCompletionChunk
from semspec.gateway.api.openai.responses_models import EVENTS as RESPONSE_EVENTS
from semspec.gateway.api.openai.responses_models import ModelResponse
from semspec.gateway.api.shared.errors import Error, TgiError
from semspec.gateway.api.shared.idempotency import MAX_KEY_LENGTH
from semspec.gateway.api.tgi.answers import TgiAnswer, TgiChunk

Responses = dict[int | str, dict[str, Any]]

DESCRIBED: tuple[type[BaseModel], ...] = (
    ChatCompletion,
    ChatCompletionChunk,
    Error,
    ModelResponse,
    *RESPONSE_EVENTS,
    TextCompletion,
    TextCompletionChunk,
    TgiAnswer,
    TgiChunk,
    TgiError,
)
"""Schemas that the tables below reference by name; FastAPI adds the others from the routes' return types."""

_MEANINGS = {
    400: "The request is invalid; `param` names the field.",
    401: "The API key is missing or unknown.",
    404: "There is no such model, generation, session or file.",
    405: "The path does not support the method.",
    408: "The body took too long to arrive.",
    409: "A session or a generation is in use, was cancelled, or belongs to models no longer served.",
    413: "The body is too large.",
    422: "The request is invalid.",
    424: "A required service is unavailable, the generation is in use or cancelled, or it took too long.",
    429: "No slot became free in time, or too many requests are queued; retry.",
    500: "An internal error.",
    503: "A required service is unavailable, or models and probes do not match.",
    504: "The request took longer than this server allows.",
}

_AGAIN = {
    "x-should-retry": {
        "description": "`false` where OpenAI's clients would retry by default but should not",
        "schema": {"const": "false"},
    }
}
_LATER = {"Retry-After": {"description": "in seconds", "schema": {"type": "integer", "minimum": 1}}}
_HEADERS = {
    401: {"WWW-Authenticate": {"required": True, "description": "the scheme", "schema": {"const": "Bearer"}}},
    405: {"Allow": {"required": True, "description": "methods the path supports", "schema": {"type": "string"}}},
    409: _AGAIN,
    424: _AGAIN | _LATER,
    429: {"Retry-After": {**_LATER["Retry-After"], "required": True}},
    503: _LATER,
}


def refusals(*statuses: int, error: type[BaseModel] = Error) -> Responses:
    """Error responses with their headers, in OpenAI's format or in that of `error`."""
    return {
        status: {"description": _MEANINGS[status], "headers": _HEADERS.get(status, {}), "content": _json(error)}
        for status in statuses
    }


def reference(model: type[BaseModel]) -> dict[str, str]:
    """Reference to a model's schema in the document's components."""
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _json(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": reference(model)}}


def _json_list(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": {"type": "array", "items": reference(model)}}}


def _stream(*models: type[BaseModel], is_named: bool = False) -> dict[str, Any]:
    """An event stream described by its events, as in OpenAPI 3.2; `is_named` events have their `type` as name too."""
    data = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [reference(model) for model in models]},
    }
    id = {"type": "string", "pattern": "^[0-9]+(-[0-9]+)*$", "description": "for `Last-Event-ID`"}
    event: dict[str, Any] = {"data": {"anyOf": [{"const": "[DONE]"}, data]}, "id": id}
    if is_named:
        event = {"data": data, "id": id, "event": {"type": "string"}}
    return {"text/event-stream": {"itemSchema": {"type": "object", "required": ["data"], "properties": event}}}


_GENERATING = refusals(400, 404, 408, 409, 413, 429, 503, 504)
_STORED = refusals(400, 404, 503)
_LINKS = {
    operation: {"operationId": operation, "parameters": {"id": "$response.body#/id"}}
    for operation in ("generation", "trace", "events", "cancel")
}

CHAT: Responses = {
    200: {"content": _json(ChatCompletion) | _stream(ChatCompletionChunk, Error), "links": _LINKS},
    **_GENERATING,
}
COMPLETION: Responses = {
    200: {"content": _json(TextCompletion) | _stream(TextCompletionChunk, Error), "links": _LINKS},
    **_GENERATING,
}
RESPONSE: Responses = {
    200: {"content": _json(ModelResponse) | _stream(*RESPONSE_EVENTS, Error, is_named=True), "links": _LINKS},
    **_GENERATING,
}
STORED_RESPONSE: Responses = _STORED
GENERATION: Responses = _STORED
TRACE: Responses = _STORED
EVENTS: Responses = {
    200: {"content": _stream(ChatCompletionChunk, TextCompletionChunk, *RESPONSE_EVENTS, TgiChunk, Error, TgiError)},
    **refusals(400, 404, 409, 429, 503, 504),
}
COLLECTION: Responses = _STORED
SESSION: Responses = _STORED
SESSIONS: Responses = refusals(503)
FORGOTTEN: Responses = refusals(400, 404, 409, 503)
MODELS: Responses = {
    200: {
        "links": {"model": {"operationId": "model", "parameters": {"name": "$response.body#/data/0/id"}}},
    }
}
MODEL: Responses = refusals(404)
READY: Responses = refusals(503)
METRICS: Responses = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}

_TGI = refusals(400, 408, 413, 422, 424, 429, error=TgiError)
GENERATE: Responses = {200: {"content": _json(TgiAnswer)}, **_TGI}
GENERATE_STREAM: Responses = {200: {"content": _stream(TgiChunk, TgiError)}, **_TGI}
EITHER: Responses = {200: {"content": _json_list(TgiAnswer) | _stream(TgiChunk, TgiError)}, **_TGI}
TOKENIZE: Responses = refusals(400, 408, 413, 422, 424, 429, error=TgiError)
DETOKENIZE: Responses = refusals(400, 404, 408, 413, 429, 503, 504)
INFO: Responses = refusals(424, error=TgiError)

IDEMPOTENT: dict[str, Any] = {
    "parameters": [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "required": False,
            "description": "a request repeated under its key is answered by the generation that the first one began",
            "schema": {"type": "string", "maxLength": MAX_KEY_LENGTH},
        }
    ]
}
"""For a decorator's `openapi_extra`: `Responder` reads the header, not the route."""
