"""`/openapi.json`: responses for the routes' decorators, and what completes and corrects FastAPI's document."""

import json
from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from semspec.decoding import Strategies
from semspec.gateway.api.openai.answers import ChatCompletion, ChatCompletionChunk, TextCompletion, TextCompletionChunk
from semspec.gateway.api.openai.responses_answers import EVENTS as RESPONSE_EVENTS
from semspec.gateway.api.openai.responses_answers import ModelResponse
from semspec.gateway.api.shared.errors import TGI_PATHS, Error, TgiError
from semspec.gateway.api.shared.fields import CompatibleRequestModel
from semspec.gateway.api.shared.idempotency import MAX_KEY_LENGTH
from semspec.gateway.api.shared.middleware import is_open
from semspec.gateway.api.shared.resolver import PLACEHOLDERS, model_names
from semspec.gateway.api.tgi.answers import TgiAnswer, TgiChunk
from semspec.gateway.settings import GatewaySettings

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
STORED = refusals(400, 404, 503)
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
EVENTS: Responses = {
    200: {"content": _stream(ChatCompletionChunk, TextCompletionChunk, *RESPONSE_EVENTS, TgiChunk, Error, TgiError)},
    **refusals(400, 404, 409, 429, 503, 504),
}
SESSIONS = refusals(503)
FORGOTTEN = refusals(400, 404, 409, 503)
MODELS: Responses = {
    200: {"links": {"model": {"operationId": "model", "parameters": {"name": "$response.body#/data/0/id"}}}}
}
MODEL = refusals(404)
READY = refusals(503)
METRICS: Responses = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}

_TGI = refusals(400, 408, 413, 422, 424, 429, error=TgiError)
GENERATE: Responses = {200: {"content": _json(TgiAnswer)}, **_TGI}
GENERATE_STREAM: Responses = {200: {"content": _stream(TgiChunk, TgiError)}, **_TGI}
EITHER: Responses = {
    200: {
        "content": {"application/json": {"schema": {"type": "array", "items": reference(TgiAnswer)}}}
        | _stream(TgiChunk, TgiError)
    },
    **_TGI,
}
TOKENIZE = _TGI
DETOKENIZE = refusals(400, 404, 408, 413, 429, 503, 504)
INFO = refusals(424, error=TgiError)

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

Schema = dict[str, Any]

TAGS = [
    {"name": "completions", "description": "OpenAI's API, with an object `semspec` in requests and responses."},
    {"name": "generations", "description": "Stored generations; attach to a running one or cancel it."},
    {"name": "sessions", "description": "Stored conversations."},
    {"name": "tgi", "description": "Text Generation Inference's API."},
    {"name": "models", "description": "Values for a request's `model`."},
    {"name": "operations", "description": "Health checks, metrics and the state of the services."},
]

KEY = "bearer"
"""Name of the security scheme."""

_REF = "#/components/schemas/{model}"
_FASTAPIS_OWN = ("HTTPValidationError", "ValidationError", "JsonValue")
_WITH_MODEL = (
    *("ChatRequest", "CompletionRequest", "ResponseRequest"),
    *("TokenizePrompt", "TokenizeMessages", "DetokenizeRequest"),
)
_OF_MESSAGES = ("annotations", "audio", "function_call", "refusal")
_GUESS: Schema = {"schema": {}}
"""FastAPI's content schema for routes that return a `Response`."""
_REQUEST_ID = {"description": "also logged by the server", "schema": {"type": "string"}}


class DocumentedApp(FastAPI):
    """A FastAPI application with the completed OpenAPI document."""

    def __init__(self, settings: GatewaySettings, strategies: Strategies, **options: Any) -> None:
        super().__init__(**options)
        self._settings, self._strategies = settings, strategies

    def openapi(self) -> Schema:
        if self.openapi_schema is None:
            self.openapi_schema = completed(super().openapi(), self._settings, self._strategies)
        return self.openapi_schema


def operation_id(route: APIRoute) -> str:
    """The name of the route's function, as the operation's id."""
    return route.name


def completed(document: Schema, settings: GatewaySettings, strategies: Strategies) -> Schema:
    """Add to FastAPI's document what holds for every route, and remove what FastAPI assumes wrongly."""
    schemas = document["components"]["schemas"]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            error = TgiError if path in TGI_PATHS else Error
            if settings.auth == "keys" and not is_open(method.upper(), path):
                _require_key(operation, error)
            _complete(operation, error)
    if settings.auth == "keys":
        document["components"]["securitySchemes"] = {KEY: {"type": "http", "scheme": "bearer"}}
    used = json.dumps(document["paths"])
    described = [model for model in DESCRIBED if reference(model)["$ref"] in used]
    schemas |= models_json_schema([(model, "serialization") for model in described], ref_template=_REF)[1]["$defs"]
    for name in _FASTAPIS_OWN:
        if _REF.format(model=name) not in used:
            schemas.pop(name, None)
    _complete_requests(schemas, settings, strategies)
    return document


def _require_key(operation: Schema, error: type[BaseModel]) -> None:
    operation["security"] = [{KEY: []}]
    operation["responses"] |= {str(status): refusal for status, refusal in refusals(401, error=error).items()}


def _complete(operation: Schema, error: type[BaseModel]) -> None:
    if "description" in operation:
        operation["summary"] = operation.pop("description").rstrip(".")  # FastAPI's summary is only the function's name
    responses = operation["responses"]
    if "HTTPValidationError" in json.dumps(responses.get("422")):
        del responses["422"]  # FastAPI adds it to every route with parameters; our routes list their own errors
    for status, refusal in refusals(405, 500, error=error).items():
        responses.setdefault(str(status), refusal)
    for response in responses.values():
        response["headers"] = {**response.get("headers", {}), "x-request-id": {**_REQUEST_ID, "required": True}}
        response["content"] = {
            kind: _named(content) for kind, content in response["content"].items() if content != _GUESS
        }
    operation.setdefault("parameters", []).append({"name": "x-request-id", "in": "header", **_REQUEST_ID})


def _named(content: Schema) -> Schema:
    """Keep only the schema that the routes' decorators name; FastAPI merges it with that of the route's annotation."""
    name = content.get("schema", {}).get("$ref")
    return content if name is None else {"schema": {"$ref": name}}


def _complete_requests(schemas: Schema, settings: GatewaySettings, strategies: Strategies) -> None:
    for request in _WITH_MODEL:
        schemas[request]["properties"]["model"] = {"enum": [*model_names(settings, strategies), *PLACEHOLDERS, None]}
    schemas["SemspecOptions"]["properties"]["strategy"] = {"enum": [*strategies, None]}
    for request in ("ChatRequest", "CompletionRequest"):
        schemas[request]["properties"]["n"]["anyOf"][0]["maximum"] = settings.max_n
    for model in _subclasses(CompatibleRequestModel):
        if model.__name__ in schemas:
            fields = schemas[model.__name__]["properties"]
            fields |= _without_effect(model, fields)


def _without_effect(model: type[CompatibleRequestModel], supported: Schema) -> Schema:
    """Schemas of unsupported fields, which accept only values without effect, and of fields that are ignored."""
    is_message = model.__name__ == "ChatMessage"
    names = _OF_MESSAGES if is_message else [name for name in model.noop_fields if name not in supported]
    described = "not supported: only these values, which have no effect"
    noops = {name: {"enum": [*model.noop_fields[name], None], "description": described} for name in names}
    labels = () if is_message else sorted(model.labels)
    return noops | {name: {"description": "accepted and ignored"} for name in labels}


def _subclasses(model: type[CompatibleRequestModel]) -> Iterator[type[CompatibleRequestModel]]:
    for subclass in model.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)
