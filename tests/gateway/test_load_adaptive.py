"""Load-adaptive drafting as a client and an operator see it."""

from typing import Any

import pytest

from tests.helpers.gateway import GatewayFactory

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


async def test_without_the_setting_nothing_is_measured_or_undrafted(
    start_gateway: GatewayFactory,
) -> None:
    gateway = await start_gateway()
    for _ in range(15):
        answer = (await gateway.chat(seed=None)).json()
        assert "num_undrafted" not in answer["semspec"]
    assert await gateway.metric("semspec_gateway_load_drafts") == 1
    assert "load_tokens_per_second{" not in (await gateway.http.get("/metrics")).text
