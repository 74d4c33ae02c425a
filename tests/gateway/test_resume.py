"""Generations outlive connections and gateways: they are attached to, gone on with, and cancelled, from anywhere."""

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from semspec.decoding import STRATEGIES
from semspec.gateway.store.journal import Journal
from tests.gateway.fakes import NUM_SEGMENTS, Fakes
from tests.gateway.support import Gateway, GatewayFactory, RedisServer, eventually

pytestmark = pytest.mark.slow
MESSAGES = [{"role": "user", "content": "How many?"}]
REPEATABLE = [strategy for strategy in STRATEGIES if strategy not in ("token-level", "retrieval")]
"""The others go on with other words (ADR 3)."""


async def test_finished_stream_can_be_read_again(gateway: Gateway) -> None:
    first = await gateway.chat(stream=True, semspec={"trace": True}, stream_options={"include_usage": True})
    again = await events(gateway, identity(first), trace=True)
    assert segments(again) == segments(first) and text(again) == text(first)
    whole, repeated = chunks(first)[-1], chunks(again)[-1]
    assert repeated["usage"] == whole["usage"] and repeated["id"] == whole["id"]
    assert repeated["semspec"]["trace"] == whole["semspec"]["trace"]
    assert again.text.endswith("data: [DONE]\n\n")


async def test_text_held_back_to_the_end_is_told_once(gateway: Gateway) -> None:
    first = await gateway.chat(stream=True, model="semspec-demo:target", stop=[".zzz"])
    assert text(first).endswith("."), "held back: it might have begun a stop sequence"
    lines = [line for line in first.text.splitlines() if line.startswith("id: ")]
    for line in lines:
        seen = "".join(delta(chunk) for chunk in chunks_until(first, line))
        rest = await events(gateway, identity(first), after=line.removeprefix("id: "))
        assert seen + text(rest) == text(first)


@pytest.mark.parametrize("strategy", REPEATABLE)
@pytest.mark.parametrize("num_seen", [1, 4])
async def test_interrupted_generation_goes_on_elsewhere_as_if_nothing_had_happened(
    start_gateway: GatewayFactory, strategy: str, num_seen: int
) -> None:
    undisturbed = await (await start_gateway()).chat(stream=True, model=f"semspec-demo:{strategy}", max_tokens=120)
    first, second = await start_gateway(), await start_gateway()
    seen = await hang_up_after(first, num_seen, model=f"semspec-demo:{strategy}", max_tokens=120)
    await status_becomes(second, seen[0]["id"], "interrupted")
    assert first.fakes.num_writing == 0
    rest = await events(second, seen[0]["id"], after=str(num_seen))
    told = "".join(delta(chunk) for chunk in seen) + text(rest)
    assert told == text(undisturbed), "not a segment twice, not one missing"
    assert chunks(rest)[-1]["semspec"]["num_segments"] == chunks(undisturbed)[-1]["semspec"]["num_segments"]
    stored = (await second.http.get(f"/v1/generations/{seen[0]['id']}/trace")).json()
    assert stored["status"] == "finished" and "".join(record["text"] for record in stored["segments"]) == told
    assert [record["index"] for record in stored["segments"]] == list(range(len(stored["segments"])))


async def test_choices_go_on_together(start_gateway: GatewayFactory) -> None:
    fields: dict[str, Any] = {"n": 3, "model": "semspec-demo:target"}
    undisturbed = (await (await start_gateway()).chat(**fields)).json()
    first, second = await start_gateway(), await start_gateway()
    seen = await hang_up_after(first, 5, **fields)
    counts = [sum(bool(delta(chunk, index)) for chunk in seen) for index in range(3)]
    await status_becomes(second, seen[0]["id"], "interrupted")
    rest = await events(second, seen[0]["id"], after="-".join(map(str, counts)))
    for index, choice in enumerate(undisturbed["choices"]):
        told = "".join(delta(chunk, index) for chunk in seen) + text(rest, index)
        assert told == choice["message"]["content"]


async def test_running_generation_is_followed_from_another_gateway(start_gateway: GatewayFactory) -> None:
    first, second = await start_gateway(), await start_gateway()
    first.fakes.target.pause_at = 3
    running = asyncio.create_task(first.chat(stream=True, model="semspec-demo:target"))
    await asyncio.wait_for(first.fakes.target.paused.wait(), 10)
    id = await only_running(first)
    following = asyncio.create_task(events(second, id))
    await asyncio.sleep(0.3)
    assert second.fakes.num_writing == 0, "one gateway writes"
    first.fakes.target.resume.set()
    assert text(await following) == text(await running)


async def test_generation_of_a_dead_gateway_is_taken_over(start_gateway: GatewayFactory) -> None:
    first, second = await start_gateway(writer_lease_s=1), await start_gateway(writer_lease_s=1)
    whole = (await second.chat(model="semspec-demo:target")).json()["choices"][0]["message"]["content"]
    first.fakes.target.stuck_at = 3
    running = asyncio.create_task(first.chat(stream=True, model="semspec-demo:target"))
    await asyncio.wait_for(first.fakes.target.stuck.wait(), 10)
    id = await only_running(first)
    pause_heartbeats(first)
    assert text(await events(second, id)) == whole
    trace = (await second.http.get(f"/v1/generations/{id}/trace")).json()
    assert trace["status"] == "finished" and len(trace["segments"]) == NUM_SEGMENTS
    await hung_up(running)


async def test_zombie_writes_nothing(start_gateway: GatewayFactory) -> None:
    zombie, heir = await start_gateway(writer_lease_s=1), await start_gateway(writer_lease_s=1)
    zombie.fakes.target.pause_at = 3
    running = asyncio.create_task(zombie.chat(stream=True, model="semspec-demo:target"))
    await asyncio.wait_for(zombie.fakes.target.paused.wait(), 10)
    id = await only_running(zombie)
    pause_heartbeats(zombie)
    whole = text(await events(heir, id))
    zombie.fakes.target.resume.set()
    late = await running
    assert text(late) == whole and chunks(late)[-1]["semspec"]["degraded"] is True
    trace = (await heir.http.get(f"/v1/generations/{id}/trace")).json()
    assert [record["index"] for record in trace["segments"]] == list(range(NUM_SEGMENTS))
    assert trace["degraded"] is False


async def test_failed_generation_goes_on_when_the_target_is_back(gateway: Gateway) -> None:
    whole = (await gateway.chat(model="semspec-demo:target")).json()["choices"][0]["message"]["content"]
    gateway.fakes.target.lost_at = 4
    failed = await gateway.chat(stream=True, model="semspec-demo:target")
    assert "went away" in failed.text
    gateway.fakes.target.lost_at = None
    await eventually(lambda: gateway.app.state.readiness.status.error is None)
    rest = await events(gateway, identity(failed), after="4")
    assert text(failed) + text(rest) == whole


@pytest.mark.parametrize("through", ["the same gateway", "another"])
@pytest.mark.parametrize("stream", [False, True])
async def test_cancelling_stops_the_models_wherever_they_run(
    start_gateway: GatewayFactory, through: str, stream: bool
) -> None:
    first, second = await start_gateway(writer_lease_s=1), await start_gateway()
    asked = first if through == "the same gateway" else second
    first.fakes.target.stuck_at = 2
    running = asyncio.create_task(first.chat(model="semspec-demo:target", n=2, stream=stream))
    await eventually(lambda: first.fakes.num_writing == 2 and first.fakes.target.stuck.is_set())
    id = await only_running(first)
    told = (await asked.http.post(f"/v1/generations/{id}/cancel")).json()
    assert told["status"] == "cancelled" and told["id"] == id
    answer = await running
    assert first.fakes.num_writing == 0
    if not stream:
        assert answer.status_code == 409 and answer.headers["x-should-retry"] == "false"
    assert chunks(answer)[-1]["error"]["code"] == "cancelled"
    attached = await events(second, id)
    assert chunks(attached)[-1]["error"]["code"] == "cancelled" and "cancelled" in attached.text
    assert await first.metric('semspec_gateway_generations_total{status="cancelled",strategy="target"}') == 2


async def test_cancelling_what_has_ended_changes_nothing(gateway: Gateway) -> None:
    answer = (await gateway.chat()).json()
    told = await gateway.http.post(f"/v1/generations/{answer['id']}/cancel")
    assert told.status_code == 200 and told.json()["status"] == "finished"


async def test_session_turn_of_a_resumed_generation_is_committed_once(start_gateway: GatewayFactory) -> None:
    first, second = await start_gateway(), await start_gateway()
    session = {"session": f"session-{secrets.token_hex(8)}"}
    seen = await hang_up_after(first, 2, model="semspec-demo:target", semspec=session)
    await status_becomes(second, seen[0]["id"], "interrupted")
    rest = await events(second, seen[0]["id"], after="2")
    assert text(await events(first, seen[0]["id"], after="2")) == text(rest)
    await second.chat(model="semspec-demo:target", semspec=session)
    answer = "".join(delta(chunk) for chunk in seen) + text(rest)
    assert second.fakes.target.prompts[-1] == f"<user>How many?<assistant>{answer}<user>How many?"


async def test_other_models_do_not_go_on(start_gateway: GatewayFactory) -> None:
    first, others = await start_gateway(), Fakes.make()
    others.target.model_info = replace(others.target.model_info, fingerprint="other")
    others.drafter.model_info = replace(others.drafter.model_info, datastore_model="other")
    others.verifier.verifier_info = replace(others.verifier.verifier_info, target_model="other")
    second = await start_gateway(others)
    seen = await hang_up_after(first, 2, model="semspec-demo:target")
    await status_becomes(second, seen[0]["id"], "interrupted")
    refused = await second.http.get(f"/v1/generations/{seen[0]['id']}/events")
    assert refused.status_code == 409 and "models" in refused.json()["error"]["message"]


async def test_attaching_is_refused_clearly(gateway: Gateway, start_gateway: GatewayFactory) -> None:
    unknown = await gateway.http.get("/v1/generations/chatcmpl-0/events")
    assert unknown.status_code == 404
    for bad in ("x", "1-", "-1", "1" * 10):
        refused = await gateway.http.get("/v1/generations/chatcmpl-0/events", headers={"last-event-id": bad})
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "last-event-id"
    without_redis = await start_gateway(redis_url="redis://127.0.0.1:1/0")
    assert (await without_redis.http.get("/v1/generations/chatcmpl-0/events")).status_code == 503
    assert (await without_redis.http.post("/v1/generations/chatcmpl-0/cancel")).status_code == 503


async def test_redis_lost_in_the_middle_leaves_a_generation_that_goes_on(
    start_gateway: GatewayFactory, mortal_redis: RedisServer
) -> None:
    gateway = await start_gateway(redis_url=mortal_redis.url)
    mortal_redis.kill()
    answer = (await gateway.chat()).json()
    mortal_redis.restart()
    assert (await gateway.http.get(f"/v1/generations/{answer['id']}/events")).status_code == 404


async def events(gateway: Gateway, id: str, after: str | None = None, trace: bool = False) -> httpx.Response:
    headers = {} if after is None else {"last-event-id": after}
    params = {"trace": str(trace).lower()}
    return await gateway.http.get(f"/v1/generations/{id}/events", headers=headers, params=params)


def chunks(response: httpx.Response) -> list[Any]:
    if not response.headers["content-type"].startswith("text/event-stream"):
        return [response.json()]
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def chunks_until(response: httpx.Response, line: str) -> list[Any]:
    """Chunks up to the last event with this id."""
    head = (
        response.text[: response.text.rindex(line)] + response.text[response.text.rindex(line) :].partition("\n\n")[0]
    )
    return [json.loads(one.removeprefix("data: ")) for one in head.splitlines() if one.startswith("data: {")]


def identity(response: httpx.Response) -> str:
    return str(chunks(response)[0]["id"])


def delta(chunk: Any, index: int = 0) -> str:
    choices = [choice for choice in chunk.get("choices", ()) if choice["index"] == index]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def text(response: httpx.Response, index: int = 0) -> str:
    return "".join(delta(chunk, index) for chunk in chunks(response))


def segments(response: httpx.Response) -> list[Any]:
    found = [chunk["semspec"]["segment"] for chunk in chunks(response) if "segment" in chunk.get("semspec", {})]
    return [{**record, "times": None} for record in found]


async def hang_up_after(gateway: Gateway, num_segments: int, **fields: Any) -> list[Any]:
    """Chunks of a stream that the client leaves after so many segments."""
    fakes, seen = gateway.fakes, list[Any]()
    for model in (fakes.drafter, fakes.target):
        model.stuck_at = num_segments
    body = {"model": "semspec-demo", "messages": MESSAGES, "seed": 7, "stream": True, **fields}
    async with (
        gateway.http.stream("POST", "/v1/chat/completions", json=body) as response,
        contextlib.aclosing(_chunks(response)) as stream,
    ):
        async for chunk in stream:
            seen.append(chunk)
            if sum(any(delta(one, i) for i in range(8)) for one in seen) == num_segments:
                break
    return seen


async def _chunks(response: httpx.Response) -> AsyncGenerator[Any, None]:
    async for line in response.aiter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


async def status_becomes(gateway: Gateway, id: str, status: str) -> None:
    async with asyncio.timeout(10):
        while (await gateway.http.get(f"/v1/generations/{id}")).json()["status"] != status:
            await asyncio.sleep(0.01)


async def only_running(gateway: Gateway) -> str:
    """The id of the only request that this gateway runs."""
    heartbeats = gateway.app.state.background._tasks
    async with asyncio.timeout(10):
        while not (ids := [id for task in heartbeats if (id := _held_by(task)) is not None]):
            await asyncio.sleep(0.01)
    return min(ids, key=len)


def _held_by(task: "asyncio.Task[None]") -> str | None:
    frame = task.get_coro().cr_frame  # type: ignore[union-attr]
    journal = frame.f_locals.get("self") if frame else None
    return journal._generation if isinstance(journal, Journal) else None


def pause_heartbeats(gateway: Gateway) -> None:
    """What a stopped process does: nothing."""

    async def nothing(generation: str, fence: int) -> None:
        return None

    gateway.app.state.store.hold = nothing


async def hung_up(request: "asyncio.Task[httpx.Response]") -> None:
    request.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await request
