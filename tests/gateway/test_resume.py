"""Generations outlive connections and gateways: they are attached to, gone on with, and cancelled, from anywhere."""

import asyncio
import secrets
from typing import Any

import pytest

from tests.gateway.fakes import NUM_SEGMENTS, Fakes
from tests.gateway.support import (
    NO_REDIS,
    Gateway,
    GatewayFactory,
    chunks,
    content,
    delta,
    eventually,
    text,
)
from tests.variants import OF_PRODUCT, VARIANTS

pytestmark = pytest.mark.slow

TARGET = "semspec-demo:target"
REPEATABLE = [strategy for strategy in OF_PRODUCT if strategy not in ("token-level", "retrieval")]
"""The others go on with other words (ADR 3)."""


async def test_finished_stream_can_be_read_again(gateway: Gateway) -> None:
    first = await gateway.chat(stream=True, semspec={"trace": True}, stream_options={"include_usage": True})
    whole = chunks(first)[-1]
    again = await gateway.events(whole["id"], trace=True)
    repeated = chunks(again)[-1]
    assert text(again) == text(first) and again.text.endswith("data: [DONE]\n\n")
    assert repeated["usage"] == whole["usage"] and repeated["id"] == whole["id"]
    assert repeated["semspec"]["trace"] == whole["semspec"]["trace"]


async def test_text_held_back_to_the_end_is_told_once(gateway: Gateway) -> None:
    first = await gateway.chat(stream=True, model=TARGET, stop=[".zzz"])
    assert text(first).endswith("."), "held back: it might have begun a stop sequence"
    seen = ""
    for block, chunk in zip(first.text.split("\n\n"), chunks(first), strict=False):
        seen += delta(chunk)
        if block.startswith("id: "):
            after = block.partition("\n")[0].removeprefix("id: ")
            assert seen + text(await gateway.events(chunk["id"], after=after)) == text(first)


@pytest.mark.parametrize("strategy", REPEATABLE)
@pytest.mark.parametrize("num_seen", [1, 4])
async def test_interrupted_generation_goes_on_elsewhere_as_if_nothing_had_happened(
    start_gateway: GatewayFactory, strategy: str, num_seen: int
) -> None:
    fields: dict[str, Any] = {"semspec": VARIANTS[strategy], "max_tokens": 120}
    undisturbed = await (await start_gateway()).chat(stream=True, **fields)
    first, second = await start_gateway(), await start_gateway()
    seen = await first.hang_up_after(num_seen, **fields)
    id = seen[0]["id"]
    await second.status_becomes(id, "interrupted")
    assert first.fakes.num_writing == 0
    rest = await second.events(id, after=str(num_seen))
    told = "".join(map(delta, seen)) + text(rest)
    assert told == text(undisturbed), "not a segment twice, not one missing"
    assert chunks(rest)[-1]["semspec"]["num_segments"] == chunks(undisturbed)[-1]["semspec"]["num_segments"]
    stored = await second.stored(id, "/trace")
    assert stored["status"] == "finished" and "".join(record["text"] for record in stored["segments"]) == told
    assert [record["index"] for record in stored["segments"]] == list(range(len(stored["segments"])))


async def test_choices_go_on_together(start_gateway: GatewayFactory) -> None:
    fields: dict[str, Any] = {"n": 3, "model": TARGET}
    undisturbed = (await (await start_gateway()).chat(**fields)).json()
    first, second = await start_gateway(), await start_gateway()
    seen = await first.hang_up_after(5, **fields)
    counts = [sum(bool(delta(chunk, index)) for chunk in seen) for index in range(3)]
    await second.status_becomes(seen[0]["id"], "interrupted")
    rest = await second.events(seen[0]["id"], after="-".join(map(str, counts)))
    for index, choice in enumerate(undisturbed["choices"]):
        told = "".join(delta(chunk, index) for chunk in seen) + text(rest, index)
        assert told == choice["message"]["content"]


async def test_running_generation_is_followed_from_another_gateway(start_gateway: GatewayFactory) -> None:
    first, second = await start_gateway(), await start_gateway()
    async with first.held(3, stream=True) as running:
        following = asyncio.create_task(second.events(running.id))
        await asyncio.sleep(0.3)
        assert second.fakes.num_writing == 0, "one gateway writes"
    assert text(await following) == text(running.response)


def pause_heartbeats(gateway: Gateway) -> None:
    """What a stopped process does: nothing."""

    async def nothing(generation: str, fence: int) -> None:
        return None

    gateway.app.state.store.hold = nothing


@pytest.mark.parametrize("wakes", [False, True], ids=["dead", "zombie"])
async def test_generation_of_a_gateway_without_heartbeats_is_taken_over(
    start_gateway: GatewayFactory, wakes: bool
) -> None:
    first, second = await start_gateway(writer_lease_s=1), await start_gateway(writer_lease_s=1)
    async with first.held(3, stream=True) as running:
        pause_heartbeats(first)
        whole = text(await second.events(running.id))
        if not wakes:
            await running.hang_up()
    assert whole == content(await second.chat(model=TARGET))
    if wakes:
        late = running.response
        assert text(late) == whole and chunks(late)[-1]["semspec"]["degraded"] is True
    trace = await second.stored(running.id, "/trace")
    assert [record["index"] for record in trace["segments"]] == list(range(NUM_SEGMENTS))
    assert trace["status"] == "finished" and trace["degraded"] is False


async def test_failed_generation_goes_on_when_the_target_is_back(gateway: Gateway) -> None:
    whole = content(await gateway.chat(model=TARGET))
    gateway.fakes.target.lost_at = 4
    failed = await gateway.chat(stream=True, model=TARGET)
    assert "went away" in failed.text
    gateway.fakes.target.lost_at = None
    await eventually(lambda: gateway.app.state.readiness.status.error is None)
    rest = await gateway.events(chunks(failed)[0]["id"], after="4")
    assert text(failed) + text(rest) == whole


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
    assert await first.metric('semspec_gateway_generations_total{status="cancelled",strategy="target"}') == 2


async def test_cancelling_what_has_ended_changes_nothing(gateway: Gateway) -> None:
    answer = (await gateway.chat()).json()
    told = await gateway.http.post(f"/v1/generations/{answer['id']}/cancel")
    assert told.status_code == 200 and told.json()["status"] == "finished"


async def test_session_turn_of_a_resumed_generation_is_committed_once(start_gateway: GatewayFactory) -> None:
    first, second = await start_gateway(), await start_gateway()
    session = {"session": f"session-{secrets.token_hex(8)}"}
    seen = await first.hang_up_after(2, model=TARGET, semspec=session)
    id = seen[0]["id"]
    await second.status_becomes(id, "interrupted")
    rest = await second.events(id, after="2")
    assert text(await first.events(id, after="2")) == text(rest)
    await second.chat(model=TARGET, semspec=session)
    answer = "".join(map(delta, seen)) + text(rest)
    assert second.fakes.target.prompts[-1] == f"<user>How many?<assistant>{answer}<user>How many?"


async def test_other_models_do_not_go_on(start_gateway: GatewayFactory) -> None:
    first, second = await start_gateway(), await start_gateway(Fakes.make().with_other_target("other"))
    seen = await first.hang_up_after(2, model=TARGET)
    await second.status_becomes(seen[0]["id"], "interrupted")
    refused = await second.events(seen[0]["id"])
    assert refused.status_code == 409 and "models" in refused.json()["error"]["message"]


async def test_attaching_is_refused_clearly(gateway: Gateway, start_gateway: GatewayFactory) -> None:
    assert (await gateway.events("chatcmpl-0")).status_code == 404
    for bad in ("x", "1-", "-1", "1" * 10):
        refused = await gateway.events("chatcmpl-0", after=bad)
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "last-event-id"
    without_redis = await start_gateway(redis_url=NO_REDIS)
    assert (await without_redis.events("chatcmpl-0")).status_code == 503
    assert (await without_redis.http.post("/v1/generations/chatcmpl-0/cancel")).status_code == 503
