"""Waiting for room over HTTP."""

import asyncio
from typing import Any

import pytest

from semspec.keys import entry
from semspec.types import Token
from tests.gateway.support import GENEROUS_S, GatewayFactory, bearer, eventually

TARGET: dict[str, Any] = {"model": "semspec-demo:target"}


async def test_request_over_http_waits_for_room(start_gateway: GatewayFactory) -> None:
    gateway = await start_gateway(max_concurrent=1, max_n=1)
    async with gateway.held(2) as running:
        waiting = asyncio.create_task(gateway.chat(model="semspec-demo:draft"))
        await eventually(lambda: gateway.app.state.admission.num_waiting == 1)
        prompts = gateway.fakes.drafter.prompts + gateway.fakes.target.prompts
        assert len(prompts) == 1, "not tokenized before it has room"
    assert [response.status_code for response in (running.response, await waiting)] == [200, 200]


async def test_client_that_hangs_up_in_the_queue_leaves_no_trace(start_gateway: GatewayFactory) -> None:
    gateway = await start_gateway(max_concurrent=1, max_n=1)
    admission = gateway.app.state.admission
    async with gateway.held(2) as running:
        for stream in (False, True):
            waiting = asyncio.create_task(gateway.chat(stream=stream))
            await eventually(lambda: admission.num_waiting == 1)
            waiting.cancel()
            await eventually(lambda: admission.num_waiting == 0)
    assert running.response.status_code == 200
    await eventually(lambda: admission.num_running == 0)


async def test_reattached_generation_asks_for_room_as_any_other(start_gateway: GatewayFactory) -> None:
    first = await start_gateway()
    second = await start_gateway(max_concurrent=1, max_n=1, queue_timeout_s=0.05)
    id = (await first.hang_up_after(2, **TARGET))[0]["id"]
    async with second.held(2, model="semspec-demo:draft"):
        await second.status_becomes(id, "interrupted")
        refused = await second.events(id)
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
    assert (await second.events(id)).status_code == 200


async def test_choices_attached_again_have_their_room_together(start_gateway: GatewayFactory) -> None:
    """Else two requests of two choices each would take a part of it each, and wait for the other's."""
    first = await start_gateway()
    second = await start_gateway(max_concurrent=2, max_n=2, queue_timeout_s=GENEROUS_S)
    ids = [(await first.hang_up_after(1, n=2, **TARGET))[0]["id"] for _ in range(2)]
    for id in ids:
        await second.status_becomes(id, "interrupted")
    target = second.fakes.target
    target.pause_at = 2
    attached = [asyncio.create_task(second.events(id)) for id in ids]
    await asyncio.wait_for(target.paused.wait(), GENEROUS_S)
    await eventually(lambda: second.app.state.admission.num_waiting == 1)
    await eventually(lambda: target.num_writing == 2)
    target.pause_at = None
    target.resume.set()
    for response in await asyncio.gather(*attached):
        assert response.status_code == 200 and response.text.endswith("data: [DONE]\n\n")


async def test_owner_who_tokenizes_long_texts_leaves_room_for_others(
    start_gateway: GatewayFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {owner: f"sk-{owner}" for owner in ("greedy", "modest")}
    gateway = await start_gateway(api_keys=" ".join(entry(owner, key) for owner, key in keys.items()))
    held, begun = asyncio.Event(), list[str]()
    tokenize = gateway.fakes.target.tokenize

    async def slow(text: str) -> list[Token]:
        begun.append(text)
        if text == "slow":
            await held.wait()
        return await tokenize(text)

    monkeypatch.setattr(gateway.fakes.target, "tokenize", slow)

    async def ask(owner: str, text: str) -> int:
        headers = bearer(keys[owner])
        return (await gateway.http.post("/tokenize", json={"inputs": text}, headers=headers)).status_code

    async with asyncio.timeout(GENEROUS_S):
        many = asyncio.gather(*(ask("greedy", "slow") for _ in range(12)))
        await eventually(lambda: len(begun) == 2)
        assert await ask("modest", "quick") == 200 and begun == ["slow", "slow", "quick"]
        held.set()
        assert await many == [200] * 12
