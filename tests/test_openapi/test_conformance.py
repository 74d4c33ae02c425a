"""Whatever is asked, the answer is one that the document describes: of fakes that can do all that is described."""

import asyncio
import os

import pytest

from semspec.types import OperatingPoint
from tests.attacks.case import Found
from tests.attacks.rest import changed
from tests.gateway.conftest import redis_url
from tests.helpers.gateway import make_settings, running_gateway
from tests.helpers.gateway_fakes import Fakes
from tests.test_openapi.support import BODIES, IDS, check, described, operations, sent

__all__ = ["redis_url"]
pytestmark = pytest.mark.slow

MAX_EXAMPLES = int(os.environ.get("SEMSPEC_CONFORMANCE_EXAMPLES", "24"))
"""Of each operation."""


async def test_every_answer_is_as_described(redis_url: str) -> None:
    settings = make_settings(redis_url=redis_url)
    points = tuple(
        OperatingPoint(threshold, 1 - threshold, None, None, None) for threshold in (0.25, 0.5)
    )
    answered, flaws = set[str](), list[str]()
    async with running_gateway(
        settings, Fakes.make().told(verifier={"operating_points": points})
    ) as gateway:
        document = gateway.app.openapi()
        every = operations(document)
        cases = await asyncio.to_thread(described, document, "9", MAX_EXAMPLES)
        cases += changed(document, "9")[:: 1 if MAX_EXAMPLES > 99 else 8]
        own = await gateway.http.post("/v1/responses", json=BODIES["/v1/responses"])
        ids = dict(zip(IDS, ((await gateway.chat()).json()["id"], own.json()["id"]), strict=False))
        for case in cases:
            if (response := await sent(case, gateway.http, ids)) is None:
                continue
            answered |= {case["label"]} if response.status_code == 200 else set()
            try:
                check(case, response, document, every)
            except Found as found:
                flaws.append(f"{case}: {found.why}")
    assert not flaws, "\n".join(flaws[:5])
    assert len(cases) >= 250
    by_name = {"GET /v1/models/{name}", "GET /v1/sessions/{id}", "DELETE /v1/sessions/{id}"}
    assert every.keys() - answered <= by_name, "a name made up is seldom known"
