"""An application whose `/openapi.json` is complete and says nothing that is not so."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from semspec.gateway.api.bodies import LABELS, TGI_NEUTRAL
from semspec.gateway.api.bodies import NEUTRAL as OPENAI_NEUTRAL
from semspec.gateway.api.errors import TGI_PATHS, Error, TgiError
from semspec.gateway.api.middleware import is_open
from semspec.gateway.api.requests import model_names
from semspec.gateway.api.responses import DESCRIBED, reference, refusals
from semspec.gateway.settings import GatewaySettings

Schema = dict[str, Any]

TAGS = [
    {"name": "completions", "description": "OpenAI's API, with an object `semspec` in requests and answers."},
    {"name": "generations", "description": "What is stored of a generation, and ways back to one that runs."},
    {"name": "sessions", "description": "Conversations that are kept."},
    {"name": "tgi", "description": "Text Generation Inference's API."},
    {"name": "models", "description": "Names to put in a request's `model`."},
    {"name": "operations", "description": "For those who run the gateway."},
]

KEY = "bearer"
"""The document's name for how a key is sent."""

_REF = "#/components/schemas/{model}"
_FASTAPIS_OWN = ("HTTPValidationError", "ValidationError", "JsonValue")
_OF_MESSAGES = ("annotations", "audio", "function_call", "refusal", "tool_calls")
_GUESS: Schema = {"schema": {}}
"""What FastAPI says of routes that make their own response."""
_REQUEST_ID = {"description": "also in the server's log", "schema": {"type": "string"}}


class DocumentedApp(FastAPI):
    """FastAPI's application, with a document of our making."""

    def __init__(self, settings: GatewaySettings, **options: Any) -> None:
        super().__init__(**options)
        self._settings = settings

    def openapi(self) -> Schema:
        if self.openapi_schema is None:
            self.openapi_schema = completed(super().openapi(), self._settings)
        return self.openapi_schema


def operation_id(route: APIRoute) -> str:
    """The name of the route's function."""
    return route.name


def completed(document: Schema, settings: GatewaySettings) -> Schema:
    """FastAPI's document with what holds for every route, and without what FastAPI wrongly supposes."""
    schemas = document["components"]["schemas"]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            error = TgiError if path in TGI_PATHS else Error
            if settings.auth == "keys" and not is_open(method.upper(), path):
                _ask_for_key(operation, error)
            _complete(operation, error)
    if settings.auth == "keys":
        document["components"]["securitySchemes"] = {KEY: {"type": "http", "scheme": "bearer"}}
    used = json.dumps(document["paths"])
    described = [model for model in DESCRIBED if reference(model)["$ref"] in used]
    schemas |= models_json_schema([(model, "serialization") for model in described], ref_template=_REF)[1]["$defs"]
    for name in _FASTAPIS_OWN:
        if _REF.format(model=name) not in used:
            schemas.pop(name, None)
    _complete_requests(schemas, settings)
    return document


def _ask_for_key(operation: Schema, error: type[BaseModel]) -> None:
    operation["security"] = [{KEY: []}]
    operation["responses"] |= {str(status): refusal for status, refusal in refusals(401, error=error).items()}


def _complete(operation: Schema, error: type[BaseModel]) -> None:
    if "description" in operation:
        operation["summary"] = operation.pop("description").rstrip(".")  # one line that says more than a name
    responses = operation["responses"]
    if "HTTPValidationError" in json.dumps(responses.get("422")):
        del responses["422"]  # FastAPI supposes it of every route with parameters; ours say what they answer
    for status, refusal in refusals(405, 500, error=error).items():
        responses.setdefault(str(status), refusal)
    for response in responses.values():
        response["headers"] = {**response.get("headers", {}), "x-request-id": {**_REQUEST_ID, "required": True}}
        response["content"] = {
            kind: _named(content) for kind, content in response["content"].items() if content != _GUESS
        }
    operation.setdefault("parameters", []).append({"name": "x-request-id", "in": "header", **_REQUEST_ID})


def _named(content: Schema) -> Schema:
    """A schema named in a table comes on top of what FastAPI makes of the route's annotation; it stands alone."""
    name = content.get("schema", {}).get("$ref")
    return content if name is None else {"schema": {"$ref": name}}


def _complete_requests(schemas: Schema, settings: GatewaySettings) -> None:
    labels = {name: {"description": "taken, and not looked at"} for name in sorted(LABELS)}
    for request in ("ChatRequest", "CompletionRequest"):
        fields = schemas[request]["properties"]
        fields["model"]["enum"] = model_names(settings)
        fields["n"]["anyOf"][0]["maximum"] = settings.max_n
        fields |= _neutral(OPENAI_NEUTRAL) | labels
    of_messages = {name: OPENAI_NEUTRAL[name] for name in _OF_MESSAGES}
    schemas["ChatMessage"]["properties"] |= _neutral(of_messages)
    if "TgiRequest" in schemas:
        schemas["TgiParameters"]["properties"] |= _neutral(TGI_NEUTRAL)
        fields = schemas["TgiRequest"]["properties"]
        fields["parameters"] = {"anyOf": [fields["parameters"], {"type": "null"}]}  # a validator of its own takes null


def _neutral(fields: Mapping[str, Sequence[object]]) -> Schema:
    """Fields of an API that are taken only with a value that asks for nothing."""
    return {
        name: {"enum": [*values, None], "description": "not served: only these values"}
        for name, values in fields.items()
    }
