"""A request sent again under its key is answered by the generation it began."""

import asyncio
import secrets
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from tests.helpers.gateway import (
    API_KEY,
    MESSAGES,
    OURS,
    RENEWED,
    THEIRS,
    TWO_OWNERS,
    Gateway,
    GatewayFactory,
    bearer,
    content,
    eventually,
    text,
)

TARGET: dict[str, Any] = {"model": "semspec-demo:target", "seed": 7}


@pytest.fixture
def key() -> str:
    return secrets.token_hex(16)


async def ask(gateway: Gateway, key: str, api_key: str = API_KEY, **fields: Any) -> httpx.Response:
    """With a seed that is drawn, unless given."""
    return await gateway.chat(
        {"idempotency-key": key, **bearer(api_key)}, **{"seed": None, **fields}
    )


@pytest.mark.parametrize(
    "fields", [{}, {"n": 3}, {"stream": True}, {"semspec": {"trace": True}}], ids=str
)
async def test_repeated_request_is_answered_by_the_first(
    start_gateway: GatewayFactory, key: str, fields: dict[str, Any]
) -> None:
    first, second = await start_gateway(), await start_gateway()
    answer = await ask(first, key, **fields)
    again = await ask(second, key, **fields)
    assert again.status_code == 200
    assert again.headers["x-generation-id"] == answer.headers["x-generation-id"]
    assert second.fakes.target.prompts == [], "nothing is done twice"
    if "stream" in fields:
        assert text(again) == text(answer)
    else:
        assert again.json()["choices"] == answer.json()["choices"]
        assert again.json()["usage"] == answer.json()["usage"]
        assert again.json()["semspec"]["seed"] == answer.json()["semspec"]["seed"]


async def test_requests_at_the_same_time_are_one(start_gateway: GatewayFactory, key: str) -> None:
    first, second = await start_gateway(), await start_gateway()
    answers = await asyncio.gather(*(ask(gateway, key) for gateway in (first, second, first)))
    assert [answer.status_code for answer in answers] == [200] * 3
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len({str(answer.json()["choices"]) for answer in answers}) == 1


async def test_retry_goes_on_with_what_was_left(gateway: Gateway, key: str) -> None:
    whole = (await gateway.chat(**TARGET)).json()
    async with gateway.held(3, headers={"idempotency-key": key}) as running:
        await running.hang_up()
        await eventually(lambda: gateway.fakes.num_writing == 0)
    again = await ask(gateway, key, **TARGET)
    assert content(again) == whole["choices"][0]["message"]["content"]
    assert again.json()["semspec"]["num_segments"] == whole["semspec"]["num_segments"]
    assert again.json()["id"] == running.id


CHAT, TGI = {"messages": MESSAGES, "model": "semspec-demo:target"}, {"inputs": "Once"}
SAMPLED = {"do_sample": True}
REGEX = [{"grammar": {"type": "regex", "value": value}} for value in ("yes, 3", "maybe")]


@pytest.mark.parametrize(
    ("path", "body", "change"),
    [
        ("/v1/chat/completions", CHAT, {"stream": True}),
        ("/v1/chat/completions", CHAT, {"chat_template_kwargs": {"enable_thinking": False}}),
        ("/generate", {**TGI, "parameters": SAMPLED}, {"parameters": {**SAMPLED, "details": True}}),
        ("/generate", {**TGI, "parameters": REGEX[0]}, {"parameters": REGEX[1]}),
    ],
    ids=lambda one: str(one)[-40:],
)
async def test_key_of_another_request_is_refused(
    gateway: Gateway, key: str, path: str, body: dict[str, Any], change: dict[str, Any]
) -> None:
    target = gateway.fakes.target
    gateway.fakes.told(target={"template_variables": ("enable_thinking",)})
    target.says = "yes, 3"
    await gateway.app.state.readiness.check()
    headers = {"idempotency-key": key}
    first, again, other, same = [
        await gateway.http.post(path, json=one, headers=headers)
        for one in (body, body, {**body, **change}, body)
    ]
    assert first.status_code == again.status_code == same.status_code == 200, first.text
    assert len({one.headers["x-generation-id"] for one in (first, again, same)}) == 1
    assert other.status_code == (422 if path == "/generate" else 400)
    assert "used for another request" in other.text
    assert len(target.prompts) == 1


async def test_key_that_is_too_long_is_refused(gateway: Gateway) -> None:
    refused = await ask(gateway, "x" * 256)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "Idempotency-Key"


async def test_owners_have_keys_of_their_own(start_gateway: GatewayFactory, key: str) -> None:
    gateway = await start_gateway(api_keys=TWO_OWNERS)
    first, again, other = [
        (await ask(gateway, key, api_key)).json()["id"] for api_key in (OURS, RENEWED, THEIRS)
    ]
    assert first == again != other


async def test_key_of_a_refused_request_is_free_again(
    start_gateway: GatewayFactory, key: str
) -> None:
    gateway = await start_gateway(max_concurrent=1, max_queued=0)
    async with gateway.held(1):
        for _ in range(2):
            assert (await ask(gateway, key)).status_code == 429
    assert (await ask(gateway, key)).status_code == 200


async def test_repeat_of_a_request_in_the_queue_is_answered_by_it(
    start_gateway: GatewayFactory, key: str
) -> None:
    gateway = await start_gateway(max_concurrent=1, queue_timeout_s=60)
    admission = gateway.app.state.admission
    async with gateway.held(1) as running:
        first, second = (asyncio.create_task(ask(gateway, key)) for _ in range(2))
        await eventually(lambda: admission.num_waiting == 1)
        await asyncio.sleep(0.3)
        assert admission.num_waiting == 1, "the repeat takes no place of its own"
    answers = [await first, await second, running.response]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert answers[0].json()["id"] == answers[1].json()["id"] != answers[2].json()["id"]


async def test_other_content_is_refused_while_requests_wait(
    start_gateway: GatewayFactory, key: str
) -> None:
    gateway, go = await start_gateway(), asyncio.Event()
    gateway.fakes.target.before_encode = go.wait
    asked = [asyncio.create_task(ask(gateway, key, **TARGET)) for _ in range(3)]
    await eventually(lambda: gateway.app.state.admission.num_running == 1)
    other = await ask(gateway, key, **{**TARGET, "seed": 8})
    assert other.status_code == 400 and "used for another request" in other.text
    go.set()
    assert [answer.status_code for answer in await asyncio.gather(*asked)] == [200] * 3


@pytest.mark.parametrize("gone", [0, 1], ids=["the one that has the key", "the first to wait"])
async def test_others_are_answered_when_a_request_hangs_up(
    start_gateway: GatewayFactory, key: str, gone: int
) -> None:
    gateway, go = await start_gateway(), asyncio.Event()
    gateway.fakes.target.before_encode = go.wait
    asked = []
    for _ in range(4):
        asked.append(asyncio.create_task(ask(gateway, key, **TARGET)))
        await asyncio.sleep(0.1)
    left = asked.pop(gone)
    left.cancel()
    await asyncio.wait([left])
    go.set()
    answers = [await task for task in asked]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert len({answer.json()["id"] for answer in answers}) == 1


async def test_poll_of_a_key_ends_with_the_last_request_that_waits(
    start_gateway: GatewayFactory, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await start_gateway(), await start_gateway(queue_timeout_s=600)
    go, num_polls = asyncio.Event(), 0
    first.fakes.target.before_encode = go.wait
    recall = second.app.state.store.recall

    async def counted(digest: str) -> str | None:
        nonlocal num_polls
        num_polls += 1
        value: str | None = await recall(digest)
        return value

    monkeypatch.setattr(second.app.state.store, "recall", counted)
    begun = asyncio.create_task(ask(first, key, **TARGET))
    await asyncio.sleep(0.2)
    waiting = [asyncio.create_task(ask(second, key, **TARGET)) for _ in range(2)]
    await eventually(lambda: num_polls > 0)
    waiting[0].cancel()
    before = num_polls
    await eventually(lambda: num_polls > before + 2)
    waiting[1].cancel()
    await asyncio.wait(waiting)
    await asyncio.sleep(0.3)  # the gateway notices the disconnection
    before = num_polls
    await asyncio.sleep(0.5)
    assert num_polls == before
    again = asyncio.create_task(ask(second, key, **TARGET))
    await eventually(lambda: num_polls > before)
    go.set()
    assert (await again).json()["id"] == (await begun).json()["id"]


async def test_waiting_request_takes_over_that_of_a_dead_gateway(
    start_gateway: GatewayFactory, redis: Redis, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semspec_gateway.api.shared.responder.ENCODE_DEADLINE_S", 0.0)
    first, second = await start_gateway(), await start_gateway(queue_timeout_s=0.5)
    answer = await ask(first, key, **TARGET)
    await redis.delete(
        *await redis.keys(f"semspec:{{{answer.json()['id']}}}:*")
    )  # as if it had not begun
    answers = await asyncio.gather(*(ask(second, key, **TARGET) for _ in range(5)))
    assert [answer.status_code for answer in answers] == [200] * 5
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len(second.fakes.target.prompts) == 1
