"""Requests that are still running when the drain time is over."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from semspec.types import Piece, Prompt, Token
from tests.gateway.fakes import NUM_SEGMENTS, Fakes
from tests.gateway.support import API_KEY, Gateway, GatewayFactory, eventually

BODY = {"model": "semspec-demo:target", "messages": [{"role": "user", "content": "How many?"}], "seed": 7}


def assert_refused(response: httpx.Response) -> None:
    assert response.status_code == 503 and response.headers["retry-after"]
    error = response.json()["error"]
    assert error["code"] == "service_unavailable" and "shutting down" in error["message"]


async def test_whole_answer_names_the_generation_that_another_gateway_can_continue(gateway: Gateway) -> None:
    gateway.fakes.target.stuck_at = 2
    running = asyncio.create_task(gateway.chat(model="semspec-demo:target"))
    await asyncio.wait_for(gateway.fakes.target.stuck.wait(), 10)
    gateway.app.state.drain.end()
    response = await running
    assert_refused(response)
    id = response.json()["error"]["message"].partition("/v1/generations/")[2].partition("/")[0]
    async with asyncio.timeout(10):
        while (await gateway.http.get(f"/v1/generations/{id}")).json()["status"] != "interrupted":
            await asyncio.sleep(0.01)


async def test_stream_ends_with_an_event_and_goes_on_at_another_gateway(start_gateway: GatewayFactory) -> None:
    whole = await (await start_gateway()).chat(model="semspec-demo:target")
    gateway = await start_gateway(Fakes.make())
    gateway.fakes.target.stuck_at = 2
    events: list[Any] = []
    async with gateway.http.stream("POST", "/v1/chat/completions", json={**BODY, "stream": True}) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                events.append(json.loads(line.removeprefix("data: ")))
            if line == "id: 2":
                gateway.app.state.drain.end()
    id = events[0]["id"]
    assert events[-1]["error"]["code"] == "service_unavailable"
    assert f"/v1/generations/{id}/events" in events[-1]["error"]["message"]
    other = await start_gateway(Fakes.make())
    rest = await other.http.get(f"/v1/generations/{id}/events")
    assert rest.text.endswith("data: [DONE]\n\n")
    stored = (await other.http.get(f"/v1/generations/{id}/trace")).json()
    assert len(stored["segments"]) == NUM_SEGMENTS and stored["status"] == "finished"
    assert (
        "".join(segment["text"] for segment in stored["segments"]) == whole.json()["choices"][0]["message"]["content"]
    )


async def test_stream_without_a_first_event_is_refused(gateway: Gateway) -> None:
    gateway.fakes.target.stuck_at = 0
    running = asyncio.create_task(gateway.chat(model="semspec-demo:target", stream=True))
    await asyncio.wait_for(gateway.fakes.target.stuck.wait(), 10)
    gateway.app.state.drain.end()
    assert_refused(await running)


@pytest.mark.parametrize("stream", [False, True])
async def test_request_that_waits_for_a_slot_is_refused(start_gateway: GatewayFactory, stream: bool) -> None:
    gateway = await start_gateway(max_n=1, max_concurrent=1)
    gateway.fakes.target.stuck_at = 0
    running = asyncio.create_task(gateway.chat(model="semspec-demo:target"))
    await asyncio.wait_for(gateway.fakes.target.stuck.wait(), 10)
    queued = asyncio.create_task(gateway.chat(stream=stream))
    await eventually(lambda: gateway.app.state.admission.num_waiting == 1)
    gateway.app.state.drain.end()
    assert_refused(await queued)
    assert_refused(await running)


async def test_request_that_waits_for_the_first_with_its_key_is_refused(gateway: Gateway) -> None:
    begun = asyncio.Event()

    async def never(prompt: Prompt) -> Piece:
        begun.set()
        return await asyncio.Future[Piece]()

    gateway.fakes.target.encode = never  # type: ignore[method-assign]
    headers = {"idempotency-key": "one"}
    first, second = (
        asyncio.create_task(gateway.http.post("/v1/chat/completions", json=BODY, headers=headers)) for _ in range(2)
    )
    await asyncio.wait_for(begun.wait(), 10)
    gateway.app.state.drain.end()
    assert_refused(await first)
    assert_refused(await second)


async def test_request_whose_tokens_are_not_there_is_refused(gateway: Gateway) -> None:
    begun = asyncio.Event()

    async def never(text: str) -> list[Token]:
        begun.set()
        return await asyncio.Future[list[Token]]()

    gateway.fakes.target.tokenize = never  # type: ignore[method-assign]
    running = asyncio.create_task(gateway.http.post("/tokenize", json={"inputs": "x"}))
    await asyncio.wait_for(begun.wait(), 10)
    gateway.app.state.drain.end()
    response = await running
    assert response.status_code == 503 and response.headers["retry-after"]
    assert "shutting down" in response.json()["error"]


async def test_request_whose_body_is_not_there_is_refused(gateway: Gateway) -> None:
    url = httpx.URL(gateway.base_url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {API_KEY}\r\ncontent-length: 99\r\n\r\n"
    writer.write(f"{head}{{".encode())
    await gateway.http.get("/health")  # by now the other request has been read
    gateway.app.state.drain.end()
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 503 ") and b"retry-after: " in answer and b"shutting down" in answer
    writer.close()
