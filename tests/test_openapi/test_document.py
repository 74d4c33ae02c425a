"""What `/openapi.json` says of itself, and what `docs/api.md` says of it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semspec_gateway.app import create_app
from semspec_gateway.store.store import Store
from tests.helpers.gateway import make_settings
from tests.helpers.gateway_fakes import Fakes

pytestmark = pytest.mark.slow
Json = dict[str, Any]

MANUAL = Path(__file__).parents[2] / "docs" / "api.md"
REQUESTS = ("ChatRequest", "CompletionRequest", "ResponseRequest", "TgiRequest", "TgiParameters")
OWN_OBJECTS = (
    "SemspecOptions",
    "AcceptanceOptions",
    "RetrievalOptions",
    "Statistics",
    "Expected",
    "SegmentTrace",
    "StageTimes",
    "StoredGeneration",
    "GenerationModels",
)
"""Objects of this server, which no other API describes."""
WITHOUT_EFFECT = ("not supported: only without effect", "accepted and ignored")
"""Descriptions of fields that clients of other servers send."""


def described(**fields: Any) -> Json:
    """What a gateway with these settings says of itself."""
    settings = make_settings(**fields)
    return create_app(settings, Fakes.make().backends, Store(settings)).openapi()


@pytest.fixture
def document() -> Json:
    return described()


def operations(document: Json) -> Iterator[tuple[str, Json]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def test_operation_asks_for_a_key_unless_it_is_open(document: Json) -> None:
    asking = {
        name
        for name, operation in operations(document)
        if operation.get("security") == [{"bearer": []}]
    }
    assert document["components"]["securitySchemes"] == {
        "bearer": {"type": "http", "scheme": "bearer"}
    }
    assert {
        name for name, operation in operations(document) if "401" in operation["responses"]
    } == asking
    assert {name for name, _ in operations(document)} - asking == {
        "GET /health",
        "GET /ping",
        "GET /ready",
    }


def test_document_of_a_gateway_without_keys_mentions_none() -> None:
    open_to_all = described(auth="none")
    assert "securitySchemes" not in open_to_all["components"]
    assert not any("401" in operation["responses"] for _, operation in operations(open_to_all))


def test_every_reference_leads_somewhere_and_no_schema_is_unused(document: Json) -> None:
    referred = set(re.findall(r"#/components/schemas/([\w-]+)", str(document)))
    assert referred == set(document["components"]["schemas"])


def test_request_has_fields_that_are_not_supported_with_their_values(document: Json) -> None:
    fields = document["components"]["schemas"]["ChatRequest"]["properties"]
    assert fields["echo"]["enum"] == [False, None] and "user" in fields


def test_manual_mentions_every_operation_status_and_header(document: Json) -> None:
    for name, operation in operations(document):
        assert f"`{name}`" in MANUAL.read_text()
        assert set(operation["responses"]) - {"200"} <= manual_words()
    headers = {
        parameter["name"].lower()
        for _, operation in operations(document)
        for parameter in operation.get("parameters", ())
    }
    assert headers <= {word.lower() for word in manual_words()}


@pytest.mark.parametrize("schema", [*REQUESTS, *OWN_OBJECTS])
def test_manual_mentions_every_field_that_has_an_effect(document: Json, schema: str) -> None:
    fields = document["components"]["schemas"][schema]["properties"]
    effective = {
        name for name, field in fields.items() if field.get("description") not in WITHOUT_EFFECT
    }
    assert effective - manual_words() == set()


def manual_words() -> set[str]:
    """Return the words that the manual has in code spans."""
    manual = re.sub(r"```.*?```", "", MANUAL.read_text(), flags=re.DOTALL)
    return set(re.findall(r"[\w.<>|-]+", " ".join(re.findall(r"`([^`]+)`", manual))))
