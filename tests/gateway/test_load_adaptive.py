"""Load-adaptive drafting as a client and an operator see it."""

import json
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import pytest

from semspec.types import Context, GenerationParams, Proposal, VerifiedTokens, Writer
from tests.helpers.gateway import GatewayFactory
from tests.helpers.gateway_fakes import Fakes, FakeVerifier, Thinker

pytestmark = pytest.mark.slow


async def test_undrafted_segments_are_counted_per_request_and_in_metrics(
    start_gateway: GatewayFactory,
) -> None:
    gateway = await start_gateway(load_adaptive=True)
    total = 0
    for _ in range(30):
        answer = (await gateway.chat(seed=None, semspec={"trace": True})).json()["semspec"]
        undrafted = [record for record in answer["trace"] if record.get("undrafted")]
        assert len(undrafted) == answer.get("num_undrafted", 0)
        assert all(
            (record["writer"], record["verdict"]) == ("target", "unjudged") for record in undrafted
        )
        total += len(undrafted)
    assert total > 0, "a probe has come"
    assert await gateway.metric("semspec_gateway_undrafted_segments_total") == total
    for mode in ("drafting", "target"):
        measured = f'semspec_gateway_load_tokens_per_second{{mode="{mode}",running="1"}}'
        assert await gateway.metric(measured) > 0


@pytest.mark.parametrize("fields", [{"seed": 7}, {"seed": None, "model": "semspec-demo:target"}])
async def test_requests_with_a_seed_and_of_the_target_alone_are_not_changed(
    start_gateway: GatewayFactory, fields: dict[str, Any]
) -> None:
    gateway = await start_gateway(load_adaptive=True)
    for _ in range(30):
        answer = (await gateway.chat(**fields)).json()
        assert "num_undrafted" not in answer["semspec"]
    assert await gateway.metric("semspec_gateway_undrafted_segments_total") == 0
    assert "load_tokens_per_second{" not in (await gateway.http.get("/metrics")).text


class HaltingThinker(Thinker):
    """Waits in each segment that it verifies, once some of its tokens are kept, until `resume` is set."""

    async def verify_tokens(
        self,
        context: Context,
        open_ids: Sequence[int],
        proposal: Proposal,
        params: GenerationParams,
    ) -> VerifiedTokens:
        if open_ids:
            await self.resume.wait()
        return await super().verify_tokens(context, open_ids, proposal, params)


@pytest.mark.parametrize(("prompt", "number"), [("How many? <think>", 4), ("How many?", 0)])
async def test_partly_sent_segment_of_an_exact_answer_is_drafted_again(
    start_gateway: GatewayFactory, prompt: str, number: int
) -> None:
    """It is the first segment of the answer, after reasoning or without."""
    fakes = Fakes(Thinker(Writer.DRAFT), HaltingThinker(Writer.TARGET), FakeVerifier())
    gateway = await start_gateway(fakes, load_adaptive=True)
    body = {
        "model": "semspec-demo",
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
        "semspec": {"exact_answer": True, "strategy": "semantic"},
    }
    id, place = "", ""
    async with (
        gateway.http.stream("POST", "/v1/chat/completions", json=body) as response,
        aclosing(response.aiter_lines()) as lines,  # type: ignore[type-var]
    ):
        async for line in lines:
            if line.startswith("data: {"):
                id = json.loads(line.removeprefix("data: "))["id"]
            if line.startswith("id: "):
                place = line.removeprefix("id: ")
            if id and place.startswith(f"{number}."):
                break
    await gateway.status_becomes(id, "interrupted")
    fakes.target.resume.set()
    rest = await gateway.events(id, after=place)
    assert rest.text.endswith("data: [DONE]\n\n")
    records = (await gateway.stored(id, "/trace"))["segments"]
    assert len(records) > number + 1
    assert not any(record.get("undrafted") for record in records)


async def test_without_the_setting_nothing_is_measured_or_undrafted(
    start_gateway: GatewayFactory,
) -> None:
    gateway = await start_gateway()
    for _ in range(15):
        answer = (await gateway.chat(seed=None)).json()
        assert "num_undrafted" not in answer["semspec"]
    assert await gateway.metric("semspec_gateway_load_drafts") == 1
    assert "load_tokens_per_second{" not in (await gateway.http.get("/metrics")).text
