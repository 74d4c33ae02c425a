"""The responses of each route, for its decorator; what every route may answer is added in `document.py`."""

from typing import Any

from pydantic import BaseModel

from semspec.gateway.api.errors import Error, TgiError
from semspec.gateway.api.idempotency import MAX_KEY_LENGTH
from semspec.gateway.api.openai_models import ChatCompletion, ChatCompletionChunk, TextCompletion, TextCompletionChunk
from semspec.gateway.api.tgi_models import TgiAnswer, TgiChunk

Responses = dict[int | str, dict[str, Any]]

DESCRIBED: tuple[type[BaseModel], ...] = (
    ChatCompletion,
    ChatCompletionChunk,
    Error,
    TextCompletion,
    TextCompletionChunk,
    TgiAnswer,
    TgiChunk,
    TgiError,
)
"""All that the tables below refer to by name. Other answers are in the document by their routes' return types."""

_MEANINGS = {
    400: "The request can never succeed as it is; `param` names the field at fault.",
    401: "The API key is missing or not known.",
    404: "There is no such model, generation, session or file.",
    405: "The path has no such method.",
    408: "The body took too long to come.",
    409: "A session or a generation is in use, was cancelled, or belongs to models no longer served.",
    413: "The body is too large.",
    422: "The request can never succeed as it is.",
    424: "A service that this needs does not answer, the generation is in use or cancelled, or it took too long.",
    429: "No room came free in time, or too many requests wait for it already; retry.",
    500: "A defect of the server's.",
    503: "A service that this needs does not answer, or what is served does not belong together.",
    504: "It took longer than this server allows.",
}

_AGAIN = {
    "x-should-retry": {
        "description": "`false` where OpenAI's clients, which repeat many refused requests, should not",
        "schema": {"const": "false"},
    }
}
_LATER = {"Retry-After": {"description": "in seconds", "schema": {"type": "integer", "minimum": 1}}}
_HEADERS = {
    401: {"WWW-Authenticate": {"required": True, "description": "the scheme", "schema": {"const": "Bearer"}}},
    405: {"Allow": {"required": True, "description": "methods the path has", "schema": {"type": "string"}}},
    409: _AGAIN,
    424: _AGAIN | _LATER,
    429: {"Retry-After": {**_LATER["Retry-After"], "required": True}},
    503: _LATER,
}


def refusals(*statuses: int, error: type[BaseModel] = Error) -> Responses:
    """Errors in OpenAI's shape or another, with their headers."""
    return {
        status: {"description": _MEANINGS[status], "headers": _HEADERS.get(status, {}), "content": _json(error)}
        for status in statuses
    }


def reference(model: type[BaseModel]) -> dict[str, str]:
    """The schema of a model in the document's components."""
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _json(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": reference(model)}}


def _json_list(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": {"type": "array", "items": reference(model)}}}


def _stream(*models: type[BaseModel]) -> dict[str, Any]:
    """An event stream by its events, in the words that OpenAPI 3.2 has for it."""
    data = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [reference(model) for model in models]},
    }
    id = {"type": "string", "pattern": "^[0-9]+(-[0-9]+)*$", "description": "for `Last-Event-ID`"}
    event = {"data": {"anyOf": [{"const": "[DONE]"}, data]}, "id": id}
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
GENERATION: Responses = _STORED
TRACE: Responses = _STORED
EVENTS: Responses = {
    200: {"content": _stream(ChatCompletionChunk, TextCompletionChunk, TgiChunk, Error, TgiError)},
    **refusals(400, 404, 409, 429, 503, 504),
}
SESSION: Responses = _STORED
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
TOKENIZE: Responses = refusals(400, 408, 413, 422, 424, error=TgiError)
INFO: Responses = refusals(424, error=TgiError)

IDEMPOTENT: dict[str, Any] = {
    "parameters": [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "required": False,
            "description": "a request sent again under its key is answered by the generation it began",
            "schema": {"type": "string", "maxLength": MAX_KEY_LENGTH},
        }
    ]
}
"""For a decorator's `openapi_extra`: the header is read where the answer begins, not by the route."""
