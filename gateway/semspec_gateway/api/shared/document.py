"""`/openapi.json`: what the routes' decorators say of their answers, and what FastAPI cannot know."""

from operator import attrgetter
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from semspec_gateway.api.openai.answers import ChatCompletionChunk, TextCompletionChunk
from semspec_gateway.api.openai.responses_answers import EVENTS as RESPONSE_EVENTS
from semspec_gateway.api.shared.errors import Error, TgiError
from semspec_gateway.api.shared.middleware import is_open
from semspec_gateway.api.tgi.answers import TgiChunk

_PLACE = r"[0-9]{1,9}(\.[0-9]{1,9}\.[0-9]{1,10})?"
EVENT_ID = f"^{_PLACE}(-{_PLACE}){{0,7}}$"
"""Pattern of the ids of a stream's events: a `Place` of each choice."""

Responses = dict[int | str, dict[str, Any]]

STREAMED: tuple[type[BaseModel], ...] = (
    ChatCompletionChunk,
    TextCompletionChunk,
    *RESPONSE_EVENTS,
    TgiChunk,
)
"""What FastAPI does not find, since routes return a `Response`."""

TAGS = [
    {
        "name": "completions",
        "description": "OpenAI's API, with an object `semspec` in requests and responses.",
    },
    {
        "name": "generations",
        "description": "Stored generations; attach to a running one or cancel it.",
    },
    {"name": "sessions", "description": "Stored conversations."},
    {"name": "tgi", "description": "Text Generation Inference's API."},
    {"name": "models", "description": "Values for a request's `model`."},
    {"name": "operations", "description": "Health checks, metrics and the state of the services."},
]

_SCHEMA = "#/components/schemas/{model}"
_FASTAPIS_OWN = ("HTTPValidationError", "ValidationError")


def errors(*statuses: int, error: type[BaseModel] = Error) -> Responses:
    """Error responses, in OpenAI's format or in that of `error`."""
    return {status: {"model": error} for status in statuses}


def stream(*models: type[BaseModel]) -> dict[str, Any]:
    """An event stream described by its events, as in OpenAPI 3.2."""
    one_of = {"anyOf": [{"$ref": _SCHEMA.format(model=model.__name__)} for model in models]}
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": one_of}
    event = {
        "data": {"anyOf": [{"const": "[DONE]"}, data]},
        "event": {"type": "string"},
        "id": {"type": "string", "pattern": EVENT_ID, "description": "for `Last-Event-ID`"},
    }
    return {
        "text/event-stream": {
            "itemSchema": {"type": "object", "required": ["data"], "properties": event}
        }
    }


def generating(*events: type[BaseModel]) -> Responses:
    """Responses of OpenAI's routes that generate, with these events of a stream."""
    operations = ("generation", "trace", "events", "cancel")
    links = {
        name: {"operationId": name, "parameters": {"id": "$response.body#/id"}}
        for name in operations
    }
    answer = {"content": stream(*events, Error), "links": links}
    return {200: answer, **errors(400, 404, 408, 409, 413, 429, 503, 504)}


STORED = errors(400, 404, 503)
ANY_ROUTE, ANY_TGI_ROUTE = errors(401, 405, 500), errors(401, 405, 500, error=TgiError)
TGI = errors(400, 408, 413, 422, 424, 429, error=TgiError)
TGI_STREAM: Responses = {200: {"content": stream(TgiChunk, TgiError)}, **TGI}


class DocumentedApp(FastAPI):
    """A FastAPI application with the completed OpenAPI document."""

    def __init__(self, asks_for_keys: bool, **options: Any) -> None:
        name_of = attrgetter("name")  # of a route's function: the operation's id
        super().__init__(
            **options, responses=ANY_ROUTE, generate_unique_id_function=name_of, openapi_tags=TAGS
        )
        self._asks_for_keys = asks_for_keys

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            document = super().openapi()
            for path, operations in document["paths"].items():
                for method, operation in operations.items():
                    self._complete(operation, is_open(method.upper(), path))
            components = document["components"]
            if self._asks_for_keys:
                components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
            described = models_json_schema(
                [(model, "serialization") for model in STREAMED], ref_template=_SCHEMA
            )
            components["schemas"] |= described[1]["$defs"]
            for name in _FASTAPIS_OWN:
                components["schemas"].pop(name, None)
        return self.openapi_schema or {}

    def _complete(self, operation: dict[str, Any], is_open: bool) -> None:
        responses = operation["responses"]
        if "HTTPValidationError" in str(responses.get("422")):
            # FastAPI adds it to every route with parameters; our routes list their own errors.
            del responses["422"]
        if self._asks_for_keys and not is_open:
            operation["security"] = [{"bearer": []}]
        else:
            del responses["401"]
