"""One request, observed in all four services: its trace, and that nobody tells what it said."""

import time
from typing import Any

import pytest

from tests.helpers.gateway import chunks, eventually
from tests.helpers.stack import LONG_QUESTION, records_of
from tests.test_observability.collector import Received, collecting, named
from tests.test_observability.conftest import Observed

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="package")]

TRACE_ID, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SERVICES = {"semspec-gateway", "semspec-draft", "semspec-target", "semspec-verifier"}
ROUTE = "POST /v1/chat/completions"


async def ask(observed: Observed, trace_id: str = TRACE_ID, **fields: Any) -> list[str]:
    """Ask as a client that is traced itself; the texts of the answer's segments."""
    body = {
        "model": "semspec-demo",
        "messages": [{"role": "user", "content": LONG_QUESTION}],
        "seed": 5,
        **fields,
    }
    headers = {"traceparent": f"00-{trace_id}-{CALLER}-01"}
    response = await observed.http.post("/v1/chat/completions", json=body, headers=headers)
    assert response.status_code == 200
    told = chunks(response)
    return [record["text"] for record in records_of(told) or told[-1]["semspec"]["trace"]]


async def trace_of(observed: Observed, trace_id: str) -> list[Received]:
    """The spans of a trace, once every process has sent what it will; a call cancelled early may never be served."""

    def is_whole() -> bool:
        mine = observed.collector.trace(trace_id)
        known = {span.span_id for span in mine} | {CALLER}
        served = {span.parent_id for span in mine if span.kind == "server"}
        answered = {
            s.span_id
            for s in mine
            if s.kind == "client" and "semspec.cancelled" not in s.attributes
        }
        return (
            bool(named(mine, ROUTE))
            and answered <= served
            and all(span.parent_id in known for span in mine)
        )

    await eventually(is_whole)
    return observed.collector.trace(trace_id)


async def test_streamed_request_is_one_trace_over_four_services(observed: Observed) -> None:
    segments = await ask(observed, stream=True, semspec={"trace": True, "strategy": "semantic"})
    spans = await trace_of(observed, TRACE_ID)
    by_id = {span.span_id: span for span in spans}
    assert {span.service for span in spans} == SERVICES

    [request], [generation] = named(spans, ROUTE), named(spans, "generation")
    assert request.parent_id == CALLER and request.kind == "server"
    assert request.attributes["http.route"] == "/v1/chat/completions"
    assert request.attributes["http.response.status_code"] == 200
    assert generation.parent_id == request.span_id
    assert generation.attributes["semspec.strategy"] == "semantic"
    assert generation.attributes["semspec.num_segments"] == len(segments)
    assert 0 < generation.attributes["semspec.acceptance_rate"] <= 1
    assert generation.attributes["gen_ai.request.model"] == "semspec-demo"
    assert (
        generation.attributes["gen_ai.usage.output_tokens"]
        == generation.attributes["semspec.num_tokens"]
    )
    assert request.start_ns <= generation.start_ns and generation.end_ns <= request.end_ns

    calls = [span for span in spans if span.name.startswith("semspec.v2.")]
    for span in calls:
        parent = by_id[span.parent_id]
        if span.kind == "server":
            assert (parent.kind, parent.service, parent.name) == (
                "client",
                "semspec-gateway",
                span.name,
            )
            assert span.service == f"semspec-{span.name.split('.')[2].split('/')[0].lower()}"
        else:
            assert parent is (request if span.name.endswith("/Encode") else generation)
    names = {span.name for span in calls}
    assert names >= {
        f"semspec.v2.{call}"
        for call in ("Target/Encode", "Draft/Generate", "Target/Score", "Verifier/Judge")
    }
    assert not any(span.has_failed for span in spans)


async def test_no_span_holds_words_of_the_prompt_or_the_answer(observed: Observed) -> None:
    trace_id = TRACE_ID[::-1]
    segments = await ask(observed, trace_id, semspec={"trace": True, "rewrite": "token-level"})
    await trace_of(observed, trace_id)
    said = [LONG_QUESTION, *segments]
    for body in observed.collector.bodies:
        assert not any(text.strip().encode() in body for text in said)


async def test_refused_request_is_recorded_with_its_status(observed: Observed) -> None:
    trace_id = "1" * 32
    headers = {"traceparent": f"00-{trace_id}-{CALLER}-01"}
    response = await observed.http.post(
        "/v1/chat/completions?secret=words", json={"model": "no"}, headers=headers
    )
    await eventually(lambda: bool(observed.collector.trace(trace_id)))
    [span] = observed.collector.trace(trace_id)
    assert span.name == ROUTE
    assert span.attributes["http.response.status_code"] == response.status_code == 400
    assert not any(b"secret" in body for body in observed.collector.bodies)


async def test_requests_are_answered_while_the_collector_is_away(observed: Observed) -> None:
    before = await ask(observed, "3" * 32, semspec={"trace": True})
    observed.lifeline.close()
    start = time.perf_counter()
    assert await ask(observed, "4" * 32, semspec={"trace": True}) == before
    assert time.perf_counter() - start < 10
    assert (await observed.http.get("/ready")).status_code == 200

    port = int(observed.collector.address.rpartition(":")[2])
    again = observed.lifeline.enter_context(collecting(port))
    await ask(observed, "5" * 32, semspec={"trace": True})
    await eventually(lambda: bool(named(again.trace("5" * 32), ROUTE)))
