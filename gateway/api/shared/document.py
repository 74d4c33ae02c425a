"""Completes and corrects the OpenAPI document that FastAPI generates."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from semspec.decoding import Strategies
from semspec.gateway.api.openai.conversion import PLACEHOLDERS, model_names
from semspec.gateway.api.openai.formats import TextOptions
from semspec.gateway.api.openai.responses_models import (
    InputCall,
    InputCallOutput,
    InputMessage,
    InputPart,
    InputReasoning,
)
from semspec.gateway.api.shared.errors import TGI_PATHS, Error, TgiError
from semspec.gateway.api.shared.fields import LABELS, RESPONSES_DEFAULTS, TGI_DEFAULTS
from semspec.gateway.api.shared.fields import OPENAI_DEFAULTS as OPENAI_NEUTRAL
from semspec.gateway.api.shared.middleware import is_open
from semspec.gateway.api.shared.openapi import DESCRIBED, reference, refusals
from semspec.gateway.api.shared.variables import ReasoningOptions
from semspec.gateway.settings import GatewaySettings

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
    """Keep only the schema that `responses.py` names; FastAPI merges it with that of the route's annotation."""
    name = content.get("schema", {}).get("$ref")
    return content if name is None else {"schema": {"$ref": name}}


def _complete_requests(schemas: Schema, settings: GatewaySettings, strategies: Strategies) -> None:
    labels = {name: {"description": "accepted and ignored"} for name in sorted(LABELS)}
    for request in _WITH_MODEL:
        schemas[request]["properties"]["model"] = {"enum": [*model_names(settings, strategies), *PLACEHOLDERS, None]}
    schemas["SemspecOptions"]["properties"]["strategy"] = {"enum": [*strategies, None]}
    for request in ("ChatRequest", "CompletionRequest"):
        fields = schemas[request]["properties"]
        fields["n"]["anyOf"][0]["maximum"] = settings.max_n
        fields |= _neutral({name: values for name, values in OPENAI_NEUTRAL.items() if name not in fields}) | labels
    for request in ("TokenizePrompt", "TokenizeMessages"):
        schemas[request]["properties"] |= _neutral(OPENAI_NEUTRAL) | labels
    schemas["ResponseRequest"]["properties"] |= _neutral(RESPONSES_DEFAULTS) | labels
    for item in (InputMessage, InputPart, InputReasoning, InputCall, InputCallOutput, ReasoningOptions, TextOptions):
        ignored = {name: {"description": "accepted and ignored"} for name in sorted(item.labels)}
        schemas[item.__name__]["properties"] |= _neutral(item.neutral) | ignored
    of_messages = {name: OPENAI_NEUTRAL[name] for name in _OF_MESSAGES}
    schemas["ChatMessage"]["properties"] |= _neutral(of_messages)
    if "TgiRequest" in schemas:
        schemas["TgiParameters"]["properties"] |= _neutral(TGI_DEFAULTS)


def _neutral(fields: Mapping[str, Sequence[object]]) -> Schema:
    """Schemas of unsupported fields, which accept only values without effect."""
    return {
        name: {"enum": [*values, None], "description": "not supported: only these values, which have no effect"}
        for name, values in fields.items()
    }
