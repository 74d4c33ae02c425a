"""Requests that end early: the client hangs up, the time is over, or the gateway shuts down."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.helpers.gateway import (
    GENEROUS_S,
    MESSAGES,
    Gateway,
    GatewayFactory,
    assert_error,
    content,
    eventually,
    holding,
)
from tests.helpers.gateway_fakes import NUM_SEGMENTS

BODY = {"model": "semspec-demo:target", "messages": MESSAGES, "seed": 7}


def assert_refused(response: httpx.Response) -> None:
    error = assert_error(response, 503, code="service_unavailable")
    assert response.headers["retry-after"] and "shutting down" in error["message"]


async def test_whole_answer_names_the_generation_that_another_gateway_can_continue(
    gateway: Gateway,
) -> None:
    async with gateway.held(2) as running:
        gateway.app.state.drain.end()
        response = await running.task
    assert_refused(response)
    assert f"/v1/generations/{running.id}/" in response.json()["error"]["message"]
    await gateway.status_becomes(running.id, "interrupted")


async def test_stream_ends_with_an_event_and_goes_on_at_another_gateway(
    start_gateway: GatewayFactory,
) -> None:
    gateway, other = await start_gateway(), await start_gateway()
    gateway.fakes.target.pause_at = 2
    events: list[Any] = []
    async with gateway.http.stream(
        "POST", "/v1/chat/completions", json={**BODY, "stream": True}
    ) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                events.append(json.loads(line.removeprefix("data: ")))
            if line == "id: 2":
                gateway.app.state.drain.end()
    id, error = events[0]["id"], events[-1]["error"]
    assert error["code"] == "service_unavailable"
    assert f"/v1/generations/{id}/events" in error["message"]
    assert (await other.events(id)).text.endswith("data: [DONE]\n\n")
    stored = await other.stored(id, "/trace")
    assert len(stored["segments"]) == NUM_SEGMENTS and stored["status"] == "finished"
    whole = content(await other.chat(model="semspec-demo:target"))
    assert "".join(segment["text"] for segment in stored["segments"]) == whole


@pytest.mark.parametrize("stream", [False, True])
async def test_request_that_waits_for_its_first_segment_or_for_a_slot_is_refused(
    start_gateway: GatewayFactory, stream: bool
) -> None:
    gateway = await start_gateway(max_concurrent=1)
    async with gateway.held(0, stream=stream) as running:
        queued = asyncio.create_task(gateway.chat(stream=stream))
        await eventually(lambda: gateway.app.state.admission.num_waiting == 1)
        gateway.app.state.drain.end()
        assert_refused(await queued)
        assert_refused(await running.task)


async def test_request_that_waits_for_the_first_with_its_key_or_for_tokens_is_refused(
    gateway: Gateway,
) -> None:
    begun = asyncio.Semaphore(0)

    async def never(*_: str) -> Any:
        begun.release()
        await asyncio.Event().wait()

    target = gateway.fakes.target
    target.before_encode, target.tokenize = never, never  # type: ignore[method-assign, assignment]
    first, second = (
        asyncio.create_task(gateway.chat({"idempotency-key": "one"})) for _ in range(2)
    )
    third = asyncio.create_task(gateway.http.post("/tokenize", json={"inputs": "x"}))
    for _ in range(2):
        await asyncio.wait_for(begun.acquire(), GENEROUS_S)
    gateway.app.state.drain.end()
    assert_refused(await first)
    assert_refused(await second)
    response = await third
    assert response.status_code == 503 and response.headers["retry-after"]
    assert "shutting down" in response.json()["error"]


@pytest.mark.parametrize("writer", ["draft", "target"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("at", [0, 2])
async def test_disconnect_cancels_the_generation(
    gateway: Gateway, writer: str, stream: bool, at: int
) -> None:
    fakes = gateway.fakes
    async with gateway.held(at, model=f"semspec-demo:{writer}", stream=stream) as running:
        assert fakes.num_writing == 1
        await running.hang_up()
        await eventually(lambda: fakes.num_writing == 0)
    interrupted = f'semspec_gateway_generations_total{{status="interrupted",strategy="{writer}"}}'
    await gateway.metric_becomes(interrupted, 1)
    assert await gateway.metric("semspec_gateway_generations_in_flight") == 0
    assert gateway.app.state.admission.num_running == 0


async def test_disconnect_cancels_every_choice_and_what_is_drafted_ahead(gateway: Gateway) -> None:
    drafter = gateway.fakes.drafter
    request = gateway.chat(n=4, stream=True, semspec={"gamma": 2})
    async with holding(drafter, 4, request) as running:
        await eventually(lambda: drafter.num_writing == 4)
        running.cancel()
        await eventually(lambda: gateway.fakes.num_writing == 0)


async def test_deadline_ends_a_generation(start_gateway: GatewayFactory) -> None:
    gateway = await start_gateway(generation_deadline_s=0.05)
    gateway.fakes.target.pause_at = 0
    assert_error(await gateway.chat(model="semspec-demo:target"), 504, code="timeout")
    assert gateway.fakes.num_writing == 0
