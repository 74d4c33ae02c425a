"""A generation that outlives its gateway, its target and its connection: nothing is told twice, nothing is missing."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import httpx
import pytest
import pytest_asyncio

from semspec.client import Event
from semspec.stack import StackConfig
from semspec.stack.config import OWNER
from semspec_gateway.store.store import stored_name
from tests.helpers.gateway import free_port
from tests.helpers.processes import GENEROUS_S, Process, another_gateway
from tests.helpers.stack import (
    LONG_QUESTION,
    Json,
    Running,
    answer_of,
    http_of,
    redis_of,
    served,
    text_of,
    up_to,
)

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

TURNS = "semspec:session:{{{}}}:turns"
"""Key in Redis of a session's turns."""
ENVIRONMENT = {"SEMSPEC_GATEWAY_WRITER_LEASE_S": "1", "SEMSPEC_GATEWAY_TARGET_PATIENCE_S": "0.5"}


@dataclass(frozen=True, slots=True)
class Twins:
    """Two gateways of one stack of the bundled pair. The first is the one to suffer."""

    first: Running
    second: Running
    victims: dict[str, Process]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running_twins() -> AsyncIterator[Twins]:
    async with served(StackConfig(environment=ENVIRONMENT, start_timeout_s=GENEROUS_S)) as first:
        victims = {role: Process.of(first.stack, role) for role in ("gateway", "target")}
        second = another_gateway(victims["gateway"], "gateway 2", free_port())
        await second.start()  # the stack stops it with the others
        async with http_of(first.stack, second.address) as http:
            yield Twins(first, Running(first.stack, http), victims)


@pytest_asyncio.fixture(loop_scope="module")
async def twins(running_twins: Twins) -> AsyncIterator[Twins]:
    """Both ready; what a test has killed is started again behind it."""
    await asyncio.gather(running_twins.first.until_ready(), running_twins.second.until_ready())
    yield running_twins
    for role, victim in running_twins.victims.items():
        if not running_twins.first.stack.processes[role].is_alive:
            await victim.start()


@pytest.mark.parametrize("strategy", ["semantic", "target", "token-level"])
async def test_another_gateway_goes_on_for_one_killed_and_commits_the_turn_once(
    twins: Twins, strategy: str
) -> None:
    session = secrets.token_hex(8)
    whole = await twins.second.answer(LONG_QUESTION, seed=1, semspec={"strategy": strategy})
    seen = await seen_until_killed(
        twins, seed=1, semspec={"strategy": strategy, "session": session}
    )
    id = seen[0].data["id"]
    rest = await twins.second.attached(id, seen[-1].id)
    again = await twins.second.attached(id, "0")
    await assert_told_once(twins.second, seen, rest, whole)
    assert text_of(chunks(again)) == answer_of(whole)
    await assert_conversation_goes_on(twins.second, session, whole)


async def test_gateway_that_wakes_up_late_stores_nothing_more(twins: Twins) -> None:
    fields, session = {"seed": 2}, secrets.token_hex(8)
    whole = await twins.second.answer(LONG_QUESTION, **fields)
    async with twins.first.events(LONG_QUESTION, **fields, semspec={"session": session}) as events:
        seen = await up_to(is_second_segment, events)
        id = seen[0].data["id"]
        async with twins.victims["gateway"].frozen():
            assert (await twins.second.generation(id))["status"] == "running"
            rest = await twins.second.attached(id, seen[-1].id)
            stored = await twins.second.stored_trace(id), await twins.second.generation(id)
        late = [event async for event in events]
    await assert_told_once(twins.second, seen, rest, whole)
    assert rest[-1].data["semspec"]["degraded"] is False
    assert text_of(chunks(seen, late)) == answer_of(whole)
    assert late[-1].data["semspec"]["degraded"] is True
    assert (await twins.second.stored_trace(id), await twins.second.generation(id)) == stored
    await assert_conversation_goes_on(twins.second, session, whole)


async def seen_until_killed(twins: Twins, **fields: object) -> list[Event]:
    """All that reaches the client of a gateway that is killed after the second segment."""
    async with twins.first.events(LONG_QUESTION, **fields) as events:
        seen = await up_to(is_second_segment, events)
        await twins.victims["gateway"].kill()
        with pytest.raises(httpx.TransportError):
            async for event in events:
                seen.append(event)
    return seen


def is_second_segment(event: Event) -> bool:
    return event.id == "2"


def chunks(*parts: Sequence[Event]) -> list[Json]:
    return [event.data for part in parts for event in part]


async def assert_told_once(
    running: Running, seen: list[Event], rest: list[Event], whole: Json
) -> None:
    """The client has the undisturbed text, and so has Redis."""
    assert text_of(chunks(seen, rest)) == answer_of(whole)
    stored = await running.stored_trace(seen[0].data["id"])
    assert (stored["status"], stored["degraded"]) == ("finished", False)
    assert [record["index"] for record in stored["segments"]] == list(
        range(whole["semspec"]["num_segments"])
    )


async def assert_conversation_goes_on(running: Running, session: str, first: Json) -> None:
    """The session is free, and its turns in Redis (of which the pair's template shows the models the last only) are
    the question, the answer `first`, and what is asked and answered now."""
    second = await running.answer("And now?", max_tokens=4, semspec={"session": session})
    contents = [LONG_QUESTION, content_of(first), "And now?", content_of(second)]
    async with redis_of(running.stack) as redis:
        turns = [
            json.loads(turn)
            for turn in await redis.lrange(TURNS.format(stored_name(session, OWNER)), 0, -1)
        ]
    assert [turn["content"] for turn in turns] == contents
    assert [turn["role"] for turn in turns] == ["user", "assistant"] * 2


def content_of(answer: Json) -> str:
    """The answer without the reasoning; as a turn, empty if there is none."""
    return answer["choices"][0]["message"]["content"] or ""
