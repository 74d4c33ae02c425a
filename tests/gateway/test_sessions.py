"""Conversations that Redis remembers."""

import secrets
from typing import Any

import httpx
import pytest

from tests.helpers.gateway import (
    OURS,
    THEIRS,
    TWO_OWNERS,
    Gateway,
    GatewayFactory,
    assert_error,
    bearer,
    content,
    eventually,
    until,
)


async def ask(gateway: Gateway, session: str, text: str, **fields: Any) -> httpx.Response:
    return await gateway.chat(**asking(session, text), **fields)


def asking(session: str, text: str) -> dict[str, Any]:
    """The fields of a request that asks in a session."""
    turn = {"role": "user", "content": text}
    return {"messages": [turn], "semspec": {"session": session}, "model": "semspec-demo:target"}


async def test_last_sessions_are_listed_for_their_owner(start_gateway: GatewayFactory) -> None:
    gateway = await start_gateway(api_keys=TWO_OWNERS)
    names = [f"listed-{secrets.token_hex(4)}" for _ in range(3)]
    for name in (*names, names[0]):
        assert (
            await ask(gateway, name, f"{name}?" + "!" * 300, headers=bearer(OURS))
        ).status_code == 200
    listed = (await gateway.http.get("/v1/sessions", headers=bearer(OURS))).json()["data"]
    own = [one for one in listed if one["id"] in names]
    assert [one["id"] for one in own] == [names[0], names[2], names[1]]
    assert [one["num_turns"] for one in own] == [4, 2, 2]
    assert own[0]["question"].startswith(f"{names[0]}?!") and len(own[0]["question"]) == 200
    assert own[0]["updated"] >= own[1]["updated"] > 0
    theirs = (await gateway.http.get("/v1/sessions", headers=bearer(THEIRS))).json()["data"]
    assert not {one["id"] for one in theirs} & set(names)
    assert (
        await gateway.http.delete(f"/v1/sessions/{names[2]}", headers=bearer(OURS))
    ).status_code == 200
    listed = (await gateway.http.get("/v1/sessions", headers=bearer(OURS))).json()["data"]
    assert [one["id"] for one in listed if one["id"] in names] == [names[0], names[1]]


async def test_turns_are_remembered(gateway: Gateway, session: str) -> None:
    first = await ask(gateway, session, "One?")
    answer = content(first)
    assert (await ask(gateway, session, "Two?", stream=True)).status_code == 200
    assert (await ask(gateway, session, "Three?")).json()["semspec"]["degraded"] is False
    second_prompt, third_prompt = gateway.fakes.target.prompts[1:]
    assert second_prompt == f"<user>One?<assistant>{answer}<user>Two?"
    assert third_prompt.startswith(f"{second_prompt}<assistant>target 0")
    assert third_prompt.endswith("<user>Three?")


@pytest.mark.parametrize("stream", [False, True])
async def test_second_request_on_a_busy_session_is_a_conflict(
    gateway: Gateway, session: str, stream: bool
) -> None:
    async with gateway.held(1, **asking(session, "One?")) as running:
        refused = await ask(gateway, session, "Two?", stream=stream)
        error = assert_error(refused, 409, code="conflict", param="semspec.session")
        assert error["message"].startswith(
            f"session {session} is answering another request; wait for it"
        )
        await running.hang_up()
    await _eventually_free(gateway, session)
    assert gateway.fakes.target.prompts[-1] == "<user>Again?", (
        "a cancelled turn leaves nothing behind"
    )


async def test_failure_gives_the_session_back(gateway: Gateway, session: str) -> None:
    gateway.fakes.target.lost_at = 1
    assert (await ask(gateway, session, "One?")).status_code == 503
    gateway.fakes.target.lost_at = None
    await eventually(lambda: gateway.app.state.readiness.status.error is None)
    await _eventually_free(gateway, session)
    assert gateway.fakes.target.prompts[-1] == "<user>Again?"


async def test_refused_prompt_gives_the_session_back(gateway: Gateway, session: str) -> None:
    assert (await ask(gateway, session, "")).status_code == 400
    await _eventually_free(gateway, session)


async def test_session_has_a_size_limit(start_gateway: GatewayFactory, session: str) -> None:
    gateway = await start_gateway(max_body_bytes=1500)
    assert (await ask(gateway, session, "x" * 900)).status_code == 200
    assert_error(await ask(gateway, session, "x" * 900), 400, param="semspec.session")


async def _eventually_free(gateway: Gateway, session: str) -> None:
    """A hung-up or failed request gives its session back in the background."""
    await until(
        lambda: ask(gateway, session, "Again?"), lambda response: response.status_code != 409
    )


async def test_session_can_be_read_and_forgotten(gateway: Gateway, session: str) -> None:
    path = f"/v1/sessions/{session}"
    assert (await gateway.http.get(path)).status_code == 404
    assert (await gateway.http.delete(path)).status_code == 404
    answer = content(await ask(gateway, session, "One?"))
    turns = [{"role": "user", "content": "One?"}, {"role": "assistant", "content": answer}]
    assert (await gateway.http.get(path)).json() == {
        "id": session,
        "object": "session",
        "turns": turns,
    }
    assert (await gateway.http.delete(path)).json() == {
        "id": session,
        "object": "session",
        "deleted": True,
    }
    await ask(gateway, session, "Two?")
    assert gateway.fakes.target.prompts[-1] == "<user>Two?"


async def test_session_in_use_is_not_forgotten(gateway: Gateway, session: str) -> None:
    async with gateway.held(1, **asking(session, "One?")) as running:
        assert_error(await gateway.http.delete(f"/v1/sessions/{session}"), 409, param="id")
    assert running.response.json()["semspec"]["degraded"] is False
