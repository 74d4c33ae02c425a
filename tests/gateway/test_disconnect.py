"""A client that hangs up stops both models."""

import asyncio
import contextlib
import json

import httpx
import pytest

from tests.gateway.support import API_KEY, Gateway, GatewayFactory, bearer, eventually

WITHIN_S = 1.0
"""The bar: a disconnect reaches the models within a second."""

BODY = {"messages": [{"role": "user", "content": "How many?"}], "seed": 1}


@pytest.mark.parametrize("writer", ["draft", "target"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stuck_at", [0, 2])
async def test_disconnect_cancels_the_generation(gateway: Gateway, writer: str, stream: bool, stuck_at: int) -> None:
    fakes = gateway.fakes
    model = fakes.drafter if writer == "draft" else fakes.target
    model.stuck_at = stuck_at
    body = {**BODY, "model": f"semspec-demo:{writer}", "stream": stream}
    request = asyncio.create_task(_read(gateway.base_url, body))
    await asyncio.wait_for(model.stuck.wait(), 10)
    assert fakes.num_writing == 1
    request.cancel()
    await eventually(lambda: fakes.num_writing == 0, WITHIN_S)
    with contextlib.suppress(asyncio.CancelledError):
        await request
    interrupted = f'semspec_gateway_generations_total{{status="interrupted",strategy="{writer}"}}'
    assert await gateway.metric(interrupted) == 1
    assert await gateway.metric("semspec_gateway_generations_in_flight") == 0
    assert gateway.app.state.admission.num_running == 0


async def test_disconnect_cancels_every_choice_and_what_is_drafted_ahead(gateway: Gateway) -> None:
    fakes = gateway.fakes
    fakes.drafter.stuck_at = 4
    body = {**BODY, "model": "semspec-demo", "n": 4, "stream": True, "semspec": {"gamma": 2}}
    request = asyncio.create_task(_read(gateway.base_url, body))
    await eventually(lambda: fakes.drafter.num_writing == 4 and fakes.drafter.stuck.is_set())
    request.cancel()
    await eventually(lambda: fakes.num_writing == 0, WITHIN_S)
    with contextlib.suppress(asyncio.CancelledError):
        await request


async def test_interrupted_generation_is_stored_as_such(gateway: Gateway) -> None:
    gateway.fakes.target.stuck_at = 2
    body = {**BODY, "model": "semspec-demo:target", "stream": True}
    async with gateway.http.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = response.aiter_lines()
        line = await anext(lines)
        while "id: 2" not in await anext(lines):
            pass
    identity = json.loads(line.removeprefix("data: "))["id"]
    async with asyncio.timeout(10):
        while True:
            stored = (await gateway.http.get(f"/v1/generations/{identity}/trace")).json()
            if stored["status"] == "interrupted":
                break
            await asyncio.sleep(0.01)
    assert [record["index"] for record in stored["segments"]] == [0, 1]


async def test_deadline_ends_a_generation(start_gateway: GatewayFactory) -> None:
    gateway = await start_gateway(generation_deadline_s=0.05)
    gateway.fakes.target.stuck_at = 0
    response = await gateway.chat(model="semspec-demo:target")
    assert response.status_code == 504 and response.json()["error"]["code"] == "timeout"
    assert gateway.fakes.num_writing == 0


async def _read(base_url: str, body: dict[str, object]) -> None:
    async with (
        httpx.AsyncClient(base_url=base_url, headers=bearer(API_KEY), timeout=30) as client,
        client.stream("POST", "/v1/chat/completions", json=body) as response,
    ):
        await response.aread()
