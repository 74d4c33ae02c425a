"""Variables of the chat template: how requests set them, what carries them, and what is refused."""

import json
from typing import Any

import pytest

from tests.helpers.gateway import Gateway, GatewayFactory, assert_error, content
from tests.helpers.gateway_fakes import Fakes

NO_THINKING = {"enable_thinking": False}
RENDERED = '{"enable_thinking": false}<user>How many?'
"""The fakes' prompt begins with what they get."""
RESPONSE = {"model": "semspec-demo:target", "input": "How many?", "seed": 7}


@pytest.fixture
def fakes() -> Fakes:
    return Fakes.make().told(target={"template_variables": ("enable_thinking", "reasoning_effort")})


@pytest.fixture
async def gateway(start_gateway: GatewayFactory, fakes: Fakes) -> Gateway:
    return await start_gateway(fakes)


@pytest.mark.parametrize(
    ("fields", "variables"),
    [
        ({"chat_template_kwargs": NO_THINKING}, NO_THINKING),
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        (
            {"chat_template_kwargs": {"enable_thinking": None}, "reasoning_effort": "none"},
            {"enable_thinking": None, "reasoning_effort": "none"},
        ),
        ({"chat_template_kwargs": {"reasoning_effort": 1.5}}, {"reasoning_effort": 1.5}),
        ({"chat_template_kwargs": {}, "reasoning_effort": None}, None),
        ({"chat_template_kwargs": None}, None),
    ],
    ids=str,
)
async def test_template_gets_the_variables_of_a_chat(
    gateway: Gateway, fields: Any, variables: Any
) -> None:
    assert (await gateway.chat(**fields)).status_code == 200
    [prompt] = gateway.fakes.target.prompts
    assert prompt == ("" if variables is None else json.dumps(variables)) + "<user>How many?"


async def test_effort_that_the_template_does_not_read_limits_the_reasoning(
    start_gateway: GatewayFactory,
) -> None:
    gateway = await start_gateway(Fakes.make())
    other = await gateway.http.post(
        "/v1/responses", json={**RESPONSE, "reasoning": {"effort": "low"}}
    )
    for response in (await gateway.chat(reasoning_effort="low"), other):
        assert response.status_code == 200
    assert gateway.fakes.target.prompts == ["<user>How many?"] * 2
    refused = await gateway.chat(chat_template_kwargs={"reasoning_effort": "low"})
    assert (
        "it has: none"
        in assert_error(refused, 400, param="chat_template_kwargs.reasoning_effort")["message"]
    )


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ((), ""),
        (("reasoning_effort", "other"), '{"reasoning_effort": "low"}'),
        (
            ("enable_thinking", "reasoning_effort"),
            '{"enable_thinking": false, "reasoning_effort": "low"}',
        ),
    ],
    ids=str,
)
async def test_draft_gets_the_variables_that_its_own_template_reads(
    start_gateway: GatewayFactory, fakes: Fakes, names: tuple[str, ...], expected: str
) -> None:
    fakes.told(drafter={"template_variables": names, "chat_template": "[own]"})
    await (await start_gateway(fakes)).chat(
        chat_template_kwargs=NO_THINKING, reasoning_effort="low"
    )
    assert fakes.drafter.prompts == [f"{expected}[own]<user>How many?"]


async def test_turns_of_a_session_are_rendered_with_each_requests_own_variables(
    gateway: Gateway, session: str
) -> None:
    for fields in ({"chat_template_kwargs": NO_THINKING}, {}):
        first = content(await gateway.chat(semspec={"session": session}, **fields))
    begun, following = gateway.fakes.target.prompts
    assert begun == RENDERED
    assert following.startswith("<user>How many?<assistant>") and first


async def test_choices_that_had_not_begun_are_resumed_with_the_variables(
    start_gateway: GatewayFactory, fakes: Fakes
) -> None:
    first, heir = await start_gateway(fakes), await start_gateway(Fakes.make())
    seen = await first.hang_up_after(1, max_tokens=120, chat_template_kwargs=NO_THINKING)
    await heir.events(seen[0]["id"], after="1")
    assert set(heir.fakes.target.read) == {RENDERED} and heir.fakes.target.prompts == []


async def test_response_tells_its_effort_and_does_not_hand_it_on(gateway: Gateway) -> None:
    body = {
        **RESPONSE,
        "reasoning": {"effort": "low", "summary": None},
        "chat_template_kwargs": NO_THINKING,
    }
    first = (await gateway.http.post("/v1/responses", json=body)).json()
    assert first["reasoning"] == {"effort": "low", "summary": None}
    stored = (await gateway.http.get(f"/v1/responses/{first['id']}")).json()
    assert stored["reasoning"] == first["reasoning"]
    second = (
        await gateway.http.post(
            "/v1/responses", json={**RESPONSE, "previous_response_id": first["id"]}
        )
    ).json()
    assert second["reasoning"] is None
    begun, following = gateway.fakes.target.prompts
    assert begun == '{"enable_thinking": false, "reasoning_effort": "low"}<user>How many?'
    assert following.startswith("<user>How many?<assistant>")
