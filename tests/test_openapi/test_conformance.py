"""Whatever is asked, the answer is one that the document describes."""

import os
from pathlib import Path

import pytest

from tests.gateway.support import Gateway
from tests.test_openapi.support import sent

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="package")]

NUM_CASES = 250
MAX_EXAMPLES = int(os.environ.get("SEMSPEC_CONFORMANCE_EXAMPLES", "18"))
"""Of each operation."""


async def test_every_answer_is_as_described(gateway: Gateway, tmp_path: Path) -> None:
    outcome = await sent(gateway.base_url, tmp_path / "events.ndjson", MAX_EXAMPLES)
    assert not outcome.failures, "\n".join(outcome.failures[:5]) + outcome.output
    assert outcome.statuses.total() >= NUM_CASES
    answered = {operation for operation, status in outcome.statuses if status == 200}
    described = {
        f"{method.upper()} {path}" for path, methods in gateway.app.openapi()["paths"].items() for method in methods
    }
    by_name = {"GET /v1/models/{name}", "GET /v1/sessions/{id}", "DELETE /v1/sessions/{id}"}
    assert described - answered <= by_name, "a name made up is seldom known"
    assert max(status for _, status in outcome.statuses) < 500
