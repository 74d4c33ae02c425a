"""Several who want the same at once, and clients that do not read: nobody keeps what another needs."""

import asyncio
import json
import logging
import re
import secrets
import socket
from typing import Any

import pytest

from semspec.errors import Unavailable
from semspec_gateway.__main__ import downgrade_aborted_response
from tests.helpers.gateway import (
    API_KEY,
    GENEROUS_S,
    MESSAGES,
    Gateway,
    GatewayFactory,
    eventually,
    text,
    until,
)

pytestmark = pytest.mark.slow
TARGET: dict[str, Any] = {"model": "semspec-demo:target"}


async def test_client_that_does_not_read_gives_up_its_room(
    start_gateway: GatewayFactory, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    logging.getLogger("uvicorn.error").addFilter(downgrade_aborted_response)
    gateway = await start_gateway(send_timeout_s=0.5, max_concurrent=8)
    body: dict[str, Any] = {**TARGET, "messages": MESSAGES, "n": 8, "stream": True, "seed": 7}
    body |= {"logprobs": True, "top_logprobs": 20, "semspec": {"trace": True}}
    content = json.dumps(body).encode()
    head = ["POST /v1/chat/completions HTTP/1.1", "Host: x", "Content-Type: application/json"]
    head.append(f"Authorization: Bearer {API_KEY}")
    lines = "\r\n".join([*head, f"Content-Length: {len(content)}", "", ""])
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.connect(("127.0.0.1", int(gateway.base_url.rpartition(":")[2])))
        client.sendall(lines.encode() + content)
        client.setblocking(False)
        begin = await asyncio.get_running_loop().sock_recv(client, 1000)
        await eventually(lambda: gateway.app.state.admission.num_running == 0)
        assert (await gateway.chat()).status_code == 200
    await eventually(lambda: "gave up a response; the connection is closed" in caplog.messages)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    [id] = re.findall(rb"x-generation-id: (\S+)", begin)
    assert text(await gateway.events(id.decode())) == text(await gateway.chat(**body))


async def test_slow_reader_of_what_is_stored_stays_its_writer(
    start_gateway: GatewayFactory,
) -> None:
    first, second = await start_gateway(writer_lease_s=1), await start_gateway(writer_lease_s=1)
    seen = await first.hang_up_after(4, **TARGET)
    id, store = seen[0]["id"], second.app.state.store
    async with second.app.state.generations.attach(id) as run:
        await run.next()
        await asyncio.sleep(1.3)
        assert await store.take(id) in ("held", "ended")
    assert (await store.generation(id))["status"] != "running"


async def test_fallback_outlasts_a_restart(start_gateway: GatewayFactory) -> None:
    alone, first, second = [await start_gateway() for _ in range(3)]
    for gateway in (alone, first):
        gateway.fakes.drafter.lost_at = 1
    undisturbed = await alone.chat(stream=True)
    async with first.held(4, model="semspec-demo", stream=True) as running:
        await running.hang_up()
    await second.status_becomes(running.id, "interrupted")
    assert text(await second.events(running.id)) == text(undisturbed)


async def test_client_ahead_of_the_store_is_told_so(start_gateway: GatewayFactory) -> None:
    first, second = await start_gateway(max_generation_bytes=1024), await start_gateway()
    seen = await first.hang_up_after(5, **TARGET)
    refused = await second.events(seen[0]["id"], after="5")
    assert refused.status_code == 409 and refused.json()["error"]["param"] == "last-event-id"
    assert (await second.events(seen[0]["id"], after="2")).status_code == 200


async def test_word_to_cancel_that_comes_with_the_last_segment_leaves_no_turn(
    gateway: Gateway, session: str
) -> None:
    async with gateway.held(5, semspec={"session": session}) as running:
        await gateway.app.state.store.cancel(running.id)
    assert running.response.status_code == 409
    await gateway.chat(**TARGET, semspec={"session": session})
    assert gateway.fakes.target.prompts[-1] == "<user>How many?"


async def test_choice_that_was_never_begun_is_begun_by_whoever_asks_again(
    start_gateway: GatewayFactory,
) -> None:
    gateway, key = await start_gateway(writer_lease_s=1), {"idempotency-key": secrets.token_hex(8)}
    store = gateway.app.state.store
    begin = store.begin

    async def begin_all_but_one(id: str, meta: Any) -> None:
        if id.endswith("-1"):
            raise Unavailable("slow")
        await begin(id, meta)

    store.begin = begin_all_but_one
    first = (await gateway.chat(key, n=2)).json()
    store.begin = begin
    again = (await gateway.chat(key, n=2)).json()
    assert first["choices"] == again["choices"] and first["id"] == again["id"]
    cancelled = await gateway.http.post(f"/v1/generations/{again['id']}/cancel")
    assert cancelled.json()["status"] == "finished"


async def test_hanging_up_during_a_claim_gives_the_session_back(
    gateway: Gateway, session: str
) -> None:
    store, reached = gateway.app.state.store, asyncio.Event()
    claim = store.claim

    async def slow(*arguments: Any) -> Any:
        claimed = asyncio.ensure_future(claim(*arguments))
        reached.set()
        await asyncio.sleep(0.2)
        return await claimed

    store.claim = slow
    running = asyncio.create_task(gateway.chat(semspec={"session": session}))
    await reached.wait()
    running.cancel()
    await asyncio.wait([running])
    store.claim = claim
    await until(
        lambda: gateway.chat(semspec={"session": session}),
        lambda response: response.status_code != 409,
    )


async def test_twins_on_a_session_do_not_free_it(gateway: Gateway, session: str) -> None:
    target = gateway.fakes.target
    key = {"idempotency-key": secrets.token_hex(8)}
    go = asyncio.Event()
    target.before_encode = go.wait
    target.pause_at = 2
    first = asyncio.create_task(gateway.chat(key, **TARGET, semspec={"session": session}))
    await asyncio.sleep(0.1)
    twin = asyncio.create_task(gateway.chat(key, **TARGET, semspec={"session": session}))
    await asyncio.sleep(0.1)
    assert not twin.done(), "it waits for the first to begin"
    go.set()
    await asyncio.wait_for(target.paused.wait(), GENEROUS_S)
    assert (await gateway.chat(**TARGET, semspec={"session": session})).status_code == 409
    target.resume.set()
    answer, same = (await first).json(), (await twin).json()
    assert answer["semspec"]["degraded"] is False and same["id"] == answer["id"]
