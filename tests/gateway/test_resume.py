"""Generations outlive connections and gateways: they are attached to, gone on with, and cancelled, from anywhere."""

import asyncio
from typing import Any

import pytest

from tests.helpers.gateway import (
    Gateway,
    GatewayFactory,
    assert_error,
    chunks,
    delta,
    eventually,
    text,
)
from tests.helpers.gateway_fakes import Fakes
from tests.helpers.variants import OF_PRODUCT, VARIANTS

pytestmark = pytest.mark.slow

TARGET = "semspec-demo:target"


async def test_text_held_back_to_the_end_is_told_once(gateway: Gateway) -> None:
    first = await gateway.chat(stream=True, model=TARGET, stop=[".zzz"])
    assert text(first).endswith("."), "held back: it might have begun a stop sequence"
    seen = ""
    for block, chunk in zip(first.text.split("\n\n"), chunks(first), strict=False):
        seen += delta(chunk)
        if block.startswith("id: "):
            after = block.partition("\n")[0].removeprefix("id: ")
            assert seen + text(await gateway.events(chunk["id"], after=after)) == text(first)


@pytest.mark.parametrize("strategy", OF_PRODUCT)
@pytest.mark.parametrize("num_seen", [1, 4])
async def test_interrupted_generation_goes_on_elsewhere_as_if_nothing_had_happened(
    start_gateway: GatewayFactory, strategy: str, num_seen: int
) -> None:
    fields: dict[str, Any] = {"semspec": VARIANTS[strategy], "max_tokens": 120}
    undisturbed = await (await start_gateway()).chat(stream=True, **fields)
    first, second = await start_gateway(), await start_gateway()
    seen = await first.hang_up_after(num_seen, **fields)
    id = seen[0]["id"]
    assert first.fakes.num_writing == 0
    rest = await second.events(id, after=first.last_event_id)
    told = "".join(map(delta, seen)) + text(rest)
    assert told == text(undisturbed), "not a segment twice, not one missing"
    assert (
        chunks(rest)[-1]["semspec"]["num_segments"]
        == chunks(undisturbed)[-1]["semspec"]["num_segments"]
    )
    stored = await second.stored(id, "/trace")
    assert stored["status"] == "finished"
    assert "".join(record["text"] for record in stored["segments"]) == told
    assert [record["index"] for record in stored["segments"]] == list(
        range(len(stored["segments"]))
    )


async def test_choices_go_on_together(start_gateway: GatewayFactory) -> None:
    fields: dict[str, Any] = {"n": 3, "model": TARGET}
    undisturbed = (await (await start_gateway()).chat(**fields)).json()
    first, second = await start_gateway(), await start_gateway()
    seen = await first.hang_up_after(5, **fields)
    rest = await second.events(seen[0]["id"], after=first.last_event_id)
    for index, choice in enumerate(undisturbed["choices"]):
        told = "".join(delta(chunk, index) for chunk in seen) + text(rest, index)
        assert told == choice["message"]["content"]


async def test_running_generation_is_followed_from_another_gateway(
    start_gateway: GatewayFactory,
) -> None:
    first, second = await start_gateway(), await start_gateway()
    async with first.held(3, stream=True) as running:
        following = asyncio.create_task(second.events(running.id))
        await asyncio.sleep(0.3)
        assert second.fakes.num_writing == 0, "one gateway writes"
    assert text(await following) == text(running.response)


@pytest.mark.parametrize("through", ["the same gateway", "another"])
@pytest.mark.parametrize("stream", [False, True])
async def test_cancelling_stops_the_models_wherever_they_run(
    start_gateway: GatewayFactory, through: str, stream: bool
) -> None:
    first, second = await start_gateway(writer_lease_s=1), await start_gateway()
    asked = first if through == "the same gateway" else second
    async with first.held(2, n=2, stream=stream) as running:
        await eventually(lambda: first.fakes.num_writing == 2)
        told = (await asked.http.post(f"/v1/generations/{running.id}/cancel")).json()
        assert told["status"] == "cancelled" and told["id"] == running.id
        answer = await running.task
        assert first.fakes.num_writing == 0
    if not stream:
        assert answer.status_code == 409 and answer.headers["x-should-retry"] == "false"
    for told in (answer, await second.events(running.id)):
        assert chunks(told)[-1]["error"]["code"] == "cancelled"
    assert (
        await first.metric(
            'semspec_gateway_generations_total{status="cancelled",strategy="target"}'
        )
        == 2
    )


async def test_other_models_do_not_go_on(start_gateway: GatewayFactory) -> None:
    first = await start_gateway()
    second = await start_gateway(Fakes.make().with_other_target("other"))
    seen = await first.hang_up_after(2, model=TARGET)
    assert "models" in assert_error(await second.events(seen[0]["id"]), 409)["message"]


async def test_attaching_is_refused_clearly(gateway: Gateway) -> None:
    assert (await gateway.events("chatcmpl-0")).status_code == 404
    for bad in ("x", "1-", "-1", "1" * 10, "1.2", "1.2.3.4", "1.2.x"):
        assert_error(await gateway.events("chatcmpl-0", after=bad), 400, param="last-event-id")
