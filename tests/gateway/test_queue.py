"""Waiting for room over HTTP."""

import asyncio
from contextlib import AsyncExitStack

from semspec.keys import entry
from semspec.types import Token
from tests.gateway.support import GENEROUS_S, GatewayFactory, bearer, eventually


async def test_request_over_http_waits_for_room(start_gateway: GatewayFactory) -> None:
    gateway = await start_gateway(max_concurrent=1, max_n=1)
    gateway.fakes.target.pause_at = 2
    admission = gateway.app.state.admission
    async with AsyncExitStack() as held:
        await held.enter_async_context(asyncio.timeout(GENEROUS_S))
        running = asyncio.create_task(gateway.chat(model="semspec-demo:target"))
        await gateway.fakes.target.paused.wait()
        waiting = asyncio.create_task(gateway.chat(model="semspec-demo:draft"))
        await eventually(lambda: admission.num_waiting == 1)
        assert len(gateway.fakes.drafter.prompts + gateway.fakes.target.prompts) == 1, (
            "not tokenized before it has room"
        )
        gateway.fakes.target.resume.set()
        assert [(await task).status_code for task in (running, waiting)] == [200, 200]


async def test_client_that_hangs_up_in_the_queue_leaves_no_trace(start_gateway: GatewayFactory) -> None:
    gateway = await start_gateway(max_concurrent=1, max_n=1)
    gateway.fakes.target.pause_at = 2
    admission = gateway.app.state.admission
    running = asyncio.create_task(gateway.chat(model="semspec-demo:target"))
    await asyncio.wait_for(gateway.fakes.target.paused.wait(), GENEROUS_S)
    for stream in (False, True):
        waiting = asyncio.create_task(gateway.chat(stream=stream))
        await eventually(lambda: admission.num_waiting == 1)
        waiting.cancel()
        await eventually(lambda: admission.num_waiting == 0)
    gateway.fakes.target.resume.set()
    assert (await running).status_code == 200
    await eventually(lambda: admission.num_running == 0)


async def test_reattached_generation_asks_for_room_as_any_other(start_gateway: GatewayFactory) -> None:
    first = await start_gateway()
    second = await start_gateway(max_concurrent=1, max_n=1, queue_timeout_s=0.05)
    first.fakes.target.stuck_at = 2
    body = {"model": "semspec-demo:target", "messages": [{"role": "user", "content": "How many?"}], "stream": True}
    async with first.http.stream("POST", "/v1/chat/completions", json=body) as response:
        id = response.headers["x-generation-id"]
        await asyncio.wait_for(first.fakes.target.stuck.wait(), GENEROUS_S)
    second.fakes.drafter.pause_at = 2
    running = asyncio.create_task(second.chat(model="semspec-demo:draft"))
    await asyncio.wait_for(second.fakes.drafter.paused.wait(), GENEROUS_S)
    store = second.app.state.store
    async with asyncio.timeout(GENEROUS_S):
        while (await store.generation(id))["status"] != "interrupted":
            await asyncio.sleep(0.01)
    refused = await second.http.get(f"/v1/generations/{id}/events")
    assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
    second.fakes.drafter.resume.set()
    await running
    assert (await second.http.get(f"/v1/generations/{id}/events")).status_code == 200


async def test_choices_attached_again_have_their_room_together(start_gateway: GatewayFactory) -> None:
    """Else two requests of two choices each would take a part of it each, and wait for the other's."""
    first = await start_gateway()
    body = {"model": "semspec-demo:target", "messages": [{"role": "user", "content": "?"}], "stream": True, "n": 2}
    first.fakes.target.stuck_at, ids = 1, list[str]()
    for _ in range(2):
        async with first.http.stream("POST", "/v1/chat/completions", json=body) as response:
            ids.append(response.headers["x-generation-id"])
        await eventually(lambda: first.fakes.num_writing == 0)
    second = await start_gateway(max_concurrent=2, max_n=2, queue_timeout_s=GENEROUS_S)
    store, target = second.app.state.store, second.fakes.target
    for id in ids:
        async with asyncio.timeout(GENEROUS_S):
            while (await store.generation(id))["status"] != "interrupted":
                await asyncio.sleep(0.01)
    target.pause_at = 2
    attached = [asyncio.create_task(second.http.get(f"/v1/generations/{id}/events")) for id in ids]
    await asyncio.wait_for(target.paused.wait(), GENEROUS_S)
    await eventually(lambda: second.app.state.admission.num_waiting == 1)
    await eventually(lambda: target.num_writing == 2)
    target.pause_at = None
    target.resume.set()
    for response in await asyncio.gather(*attached):
        assert response.status_code == 200 and response.text.endswith("data: [DONE]\n\n")


async def test_owner_who_tokenizes_long_texts_leaves_room_for_others(start_gateway: GatewayFactory) -> None:
    keys = {owner: f"sk-{owner}" for owner in ("greedy", "modest")}
    gateway = await start_gateway(api_keys=" ".join(entry(owner, key) for owner, key in keys.items()))
    held, begun = asyncio.Event(), list[str]()
    tokenize = gateway.fakes.target.tokenize

    async def slow(text: str) -> list[Token]:
        begun.append(text)
        if text == "slow":
            await held.wait()
        return await tokenize(text)

    gateway.fakes.target.tokenize = slow  # type: ignore[method-assign]

    async def ask(owner: str, text: str) -> int:
        headers = bearer(keys[owner])
        return (await gateway.http.post("/tokenize", json={"inputs": text}, headers=headers)).status_code

    async with asyncio.timeout(GENEROUS_S):
        many = asyncio.gather(*(ask("greedy", "slow") for _ in range(12)))
        await eventually(lambda: len(begun) == 2)
        assert await ask("modest", "quick") == 200 and begun == ["slow", "slow", "quick"]
        held.set()
        assert await many == [200] * 12
