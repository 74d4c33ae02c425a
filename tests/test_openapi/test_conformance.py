"""Whatever is asked, the answer is one that the document describes."""

from copy import deepcopy
from pathlib import Path

import pytest

from tests.gateway.support import Gateway
from tests.test_openapi.support import sent

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="package")]

NUM_CASES = 250


async def test_every_answer_is_as_described(gateway: Gateway, tmp_path: Path) -> None:
    outcome = await sent(gateway.base_url, tmp_path / "events.ndjson", "fuzzing,stateful", max_examples=18)
    assert not outcome.failures, "\n".join(outcome.failures[:5]) + outcome.output
    assert outcome.num_cases >= NUM_CASES
    answered = {operation for operation, status in outcome.statuses if status == 200}
    described = {
        f"{method.upper()} {path}" for path, methods in gateway.app.openapi()["paths"].items() for method in methods
    }
    by_name = {"GET /v1/models/{name}", "GET /v1/sessions/{id}", "DELETE /v1/sessions/{id}"}
    assert described - answered <= by_name, "a name made up is seldom known"
    assert max(status for _, status in outcome.statuses) < 500


async def test_answer_that_is_not_as_described_is_found(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = deepcopy(gateway.app.openapi())
    schemas = wrong["components"]["schemas"]
    schemas["Health"]["properties"]["status"]["const"] = "excellent"
    for chunk in ("ChatCompletionChunk", "TextCompletionChunk"):
        schemas[chunk]["properties"]["object"]["const"] = "crumb"
    for request in ("ChatRequest", "CompletionRequest"):
        schemas[request]["properties"]["stream"] = {"const": True}
        schemas[request].setdefault("required", []).append("stream")
    monkeypatch.setattr(gateway.app, "openapi_schema", wrong)
    outcome = await sent(gateway.base_url, tmp_path / "events.ndjson", "fuzzing,stateful", max_examples=18)
    failed = {failure.partition(": ")[0] for failure in outcome.failures if "response_schema_conformance" in failure}
    unary, streams = {"GET /health", "GET /ping"}, {"POST /v1/chat/completions", "POST /v1/completions"}
    assert unary | streams <= failed <= unary | streams | {"GET /v1/generations/{id}/events"}
