"""What `/openapi.json` says of itself, and what `docs/api.md` says of it."""

from collections.abc import Iterator
from typing import Any

import pytest

from semspec_gateway.app import create_app
from semspec_gateway.store.store import Store
from tests.helpers.gateway import make_settings
from tests.helpers.gateway_fakes import Fakes

pytestmark = pytest.mark.slow
Json = dict[str, Any]


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


def test_request_has_fields_that_are_not_supported_with_their_values(document: Json) -> None:
    fields = document["components"]["schemas"]["ChatRequest"]["properties"]
    assert fields["echo"]["enum"] == [False, None] and "user" in fields
