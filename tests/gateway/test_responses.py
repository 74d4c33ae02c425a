"""OpenAI's Responses API, by OpenAI's own client: whole, as events, stored and followed."""

import json
import secrets
from typing import Any

import openai
import pytest

from tests.helpers.gateway import (
    OURS,
    THEIRS,
    TWO_OWNERS,
    Gateway,
    GatewayFactory,
    assert_error,
    bearer,
)

MODEL = "semspec-demo:target"
THINKING = "How many?<think>\n"


async def answer(gateway: Gateway, **fields: Any) -> Any:
    return await gateway.openai.responses.create(
        **{"model": MODEL, "input": THINKING, "extra_body": {"seed": 7}, **fields}
    )


async def test_events_build_the_response(thinker: Gateway) -> None:
    whole = await answer(thinker)
    events = [event async for event in await answer(thinker, stream=True)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    begin = "created", "in_progress", "output_item.added", "content_part.added"
    assert [event.type for event in events][:4] == [f"response.{name}" for name in begin]
    texts = dict.fromkeys(("reasoning", "output"), "")
    for event in events:
        if event.type.endswith("_text.delta"):
            texts[event.type.removeprefix("response.").removesuffix("_text.delta")] += event.delta
    assert texts == {"reasoning": whole.output[0].content[0].text, "output": whole.output_text}
    assert events[-1].type == "response.completed" and events[-1].response.usage == whole.usage
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert done == events[-1].response.output


COUNT: dict[str, Any] = {
    "type": "function",
    "name": "count",
    "description": "Counts things.",
    "parameters": {"type": "object", "properties": {"what": {"type": "string"}}},
    "strict": False,
}
ARGUMENTS = '{"what": "pens"}'
CALL = f'<tool_call>\n{{"name": "count", "arguments": {ARGUMENTS}}}\n</tool_call>'


async def test_tools_are_called_and_answered(gateway: Gateway) -> None:
    gateway.fakes.target.says = f"Let me count.\n{CALL}"
    fields: Any = {"tools": [COUNT], "model": "semspec-demo"}
    response = await answer(gateway, input="How many?", **fields)
    message, call = response.output
    assert [item.type for item in response.output] == ["message", "function_call"]
    assert message.content[0].text == "Let me count."
    assert (call.name, call.arguments) == ("count", ARGUMENTS)
    assert (response.status, response.tool_choice) == ("completed", "auto")
    assert response.tools[0].name == "count" and response.parallel_tool_calls
    again = await gateway.openai.responses.retrieve(response.id)
    assert again.output == response.output and again.tools == response.tools
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
    gateway.fakes.target.says = "Three."
    by_id = await answer(gateway, input=[result], previous_response_id=response.id, **fields)
    output = [item.model_dump(exclude_none=True) for item in response.output]
    items = [{"role": "user", "content": "How many?"}, *output, result]
    by_items = await answer(gateway, input=items, **fields)
    assert by_id.output_text == by_items.output_text == "Three."
    first, second = gateway.fakes.target.prompts[-2:]
    assert first == second and "count" in first and "3" in first


async def test_events_of_calls_build_the_response(gateway: Gateway) -> None:
    gateway.fakes.target.says = f"Let me count.\n{CALL}{CALL}"
    fields: Any = {"model": "semspec-demo", "input": "How many?", "tools": [COUNT]}
    async with gateway.openai.responses.stream(**fields, extra_body={"seed": 7}) as stream:
        events: list[Any] = [event async for event in stream]
        final: Any = await stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [item.type for item in final.output] == ["message", "function_call", "function_call"]
    done = [event.item.id for event in events if event.type == "response.output_item.done"]
    assert done == [item.id for item in final.output] and len(set(done)) == 3
    ended = "response.function_call_arguments.done"
    assert [event.arguments for event in events if event.type == ended] == [ARGUMENTS] * 2


async def test_choice_of_a_responses_tool_is_held_and_told(gateway: Gateway) -> None:
    gateway.fakes.target.says = CALL
    choice = {"type": "function", "name": "count"}
    fields = {"tools": [COUNT], "tool_choice": choice, "parallel_tool_calls": False}
    response = await answer(gateway, input="How many?", model="semspec-demo", **fields)
    assert [item.type for item in response.output] == ["function_call"]
    assert response.tool_choice.name == "count" and response.parallel_tool_calls is False
    assert "FREE" not in gateway.fakes.target.grammars[-1]


@pytest.mark.parametrize("stream", [False, True])
async def test_response_cut_by_its_budget_is_incomplete(thinker: Gateway, stream: bool) -> None:
    response = await answer(thinker, max_output_tokens=10, stream=stream)
    if stream:
        *_, last = [event async for event in response]
        assert last.type == "response.incomplete"
        response = last.response
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert [item.status for item in response.output] == ["incomplete"]


async def test_stored_response_is_the_response(thinker: Gateway) -> None:
    for fields in ({}, {"max_output_tokens": 10}, {"instructions": "Be brief."}):
        response = await answer(thinker, **fields)
        stored = await thinker.openai.responses.retrieve(response.id)
        assert stored.model_dump(exclude={"semspec", "metrics"}) == response.model_dump(
            exclude={"semspec", "metrics"}
        )
    assert thinker.fakes.target.prompts[-1].startswith("<system>Be brief.<user>")
    chat = (await thinker.chat()).json()
    for id in (chat["id"], "resp-unknown"):
        with pytest.raises(openai.NotFoundError):
            await thinker.openai.responses.retrieve(id)
        with pytest.raises(openai.NotFoundError) as refused:
            await answer(thinker, previous_response_id=id)
        assert refused.value.param == "previous_response_id"


async def test_unfinished_response_says_so_and_is_not_followed(thinker: Gateway) -> None:
    thinker.fakes.target.pause_at = 2
    stream = await answer(thinker, stream=True)
    async for event in stream:
        if event.type == "response.created":
            id = event.response.id
        if event.type.endswith(".delta"):
            break
    await thinker.fakes.target.paused.wait()
    stored: Any = await thinker.openai.responses.retrieve(id)
    assert stored.status == "in_progress"
    assert stored.output[0].content[0].text.startswith("target 0")
    with pytest.raises(openai.ConflictError, match="only a finished one can be followed"):
        await answer(thinker, previous_response_id=id)
    await thinker.http.post(f"/v1/generations/{id}/cancel")
    assert (await thinker.openai.responses.retrieve(id)).status == "cancelled"
    await stream.close()


async def test_following_response_gets_the_turns_but_not_the_instructions(thinker: Gateway) -> None:
    first = await answer(thinker, instructions="Be brief.")
    second = await answer(thinker, input="Sure?", previous_response_id=first.id)
    really = [{"role": "user", "content": "Really?"}]
    third = await answer(thinker, input=really, previous_response_id=second.id)
    assert third.previous_response_id == second.id
    expected = f"<user>{THINKING}<assistant>{first.output_text}<user>Sure?"
    longer = f"{expected}<assistant>{second.output_text}<user>Really?"
    assert second.output_text and thinker.fakes.target.prompts[-2:] == [expected, longer]


async def test_output_can_be_sent_back_as_input(thinker: Gateway) -> None:
    first = await answer(thinker)
    items = [{"role": "user", "content": THINKING}, *(item.model_dump() for item in first.output)]
    parts = [{"type": "input_text", "text": "Sure"}, {"type": "input_text", "text": "?"}]
    await answer(thinker, input=[*items, {"type": "message", "role": "user", "content": parts}])
    expected = f"<user>{THINKING}<assistant>{first.output_text}<user>Sure?"
    assert thinker.fakes.target.prompts[-1] == expected


async def test_response_of_another_owner_does_not_exist(start_gateway: GatewayFactory) -> None:
    gateway = await start_gateway(api_keys=TWO_OWNERS)
    http, body = gateway.http, {"model": MODEL, "input": "How many?"}
    id = (await http.post("/v1/responses", json=body, headers=bearer(OURS))).json()["id"]
    following = {**body, "previous_response_id": id}
    for key, status in ((OURS, 200), (THEIRS, 404)):
        headers = bearer(key)
        assert (await http.get(f"/v1/responses/{id}", headers=headers)).status_code == status
        answered = await http.post("/v1/responses", json=following, headers=headers)
        assert answered.status_code == status


OF_CODEX: dict[str, Any] = {
    "instructions": "Be brief.",
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "client_metadata": {"session": "1"},
    "prompt_cache_key": "1",
    "tools": [],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": None, "summary": "auto"},
    "text": {"verbosity": "medium"},
    "service_tier": "priority",
}
"""Fields that Codex sends with each request."""
WITHOUT_EFFECT: list[dict[str, Any]] = [
    OF_CODEX,
    {
        "prompt_cache_retention": "24h",
        "prompt_cache_options": {"mode": "implicit"},
        "service_tier": "flex",
    },
    {"truncation": "auto", "max_tool_calls": 3, "store": True, "include": []},
    {"include": ["web_search_call.action.sources", "code_interpreter_call.outputs"]},
    {"reasoning": {"context": "auto", "mode": "standard", "summary": "auto"}},
    {"reasoning": {}},
]


@pytest.mark.parametrize("fields", WITHOUT_EFFECT, ids=lambda fields: min(fields))
async def test_fields_that_change_no_answer_are_accepted(
    thinker: Gateway, fields: dict[str, Any]
) -> None:
    plain = await answer(thinker, instructions=fields.get("instructions"))
    body = {"model": MODEL, "input": THINKING, "seed": 7, **fields}
    response = await thinker.http.post("/v1/responses", json=body)
    assert response.status_code == 200, response.text
    assert [item["content"] for item in response.json()["output"]] == [
        item["content"] for item in plain.model_dump()["output"]
    ]


async def test_response_that_is_not_to_be_stored_is_gone_once_it_has_ended(
    thinker: Gateway,
) -> None:
    thinker.fakes.target.pause_at = 2
    stream = await answer(thinker, stream=True, store=False)
    created = (await anext(aiter(stream))).response
    assert created.store is False
    await thinker.fakes.target.paused.wait()
    running = await thinker.openai.responses.retrieve(created.id)
    assert running.status == "in_progress", "a broken stream can be resumed"
    thinker.fakes.target.resume.set()
    *_, last = [event async for event in stream]
    assert last.type == "response.completed" and last.response.store is False
    for path in ("responses/{}", "generations/{}", "generations/{}/trace", "generations/{}/events"):
        gone = await thinker.http.get(f"/v1/{path.format(created.id)}")
        assert_error(gone, 404, code="not_found")
    assert_error(await thinker.http.post(f"/v1/generations/{created.id}/cancel"), 404)
    with pytest.raises(openai.NotFoundError) as refused:
        await answer(thinker, previous_response_id=created.id)
    assert refused.value.param == "previous_response_id"


async def test_unstored_response_is_repeated_by_its_key(thinker: Gateway) -> None:
    asked: Any = {"json": {"model": MODEL, "input": THINKING, "store": False}}
    asked["headers"] = {"idempotency-key": secrets.token_hex(8)}
    answers = [(await thinker.http.post("/v1/responses", **asked)).json() for _ in range(2)]
    assert answers[0]["id"] == answers[1]["id"] and answers[0]["output"] == answers[1]["output"]


async def test_output_of_other_servers_can_be_sent_back_as_input(thinker: Gateway) -> None:
    items = [
        {"role": "user", "content": "How many?"},
        {"type": "reasoning", "id": "rs-1", "summary": [], "content": [], "encrypted_content": "gAAA"},
        {"role": "assistant", "content": None},
        {"type": "message", "role": "assistant", "content": [], "status": "incomplete", "phase": "commentary"},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"type": "message", "role": "assistant", "content": [
            {"type": "output_text", "text": "25", "annotations": [{"type": "url_citation"}], "logprobs": []}]},
        {"type": "function_call", "call_id": "1", "name": "count", "arguments": "", "parsed_arguments": None},
        {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "3"}]},
    ]  # fmt: skip
    await answer(thinker, input=items)
    call = {"id": "1", "type": "function", "function": {"name": "count", "arguments": "{}"}}
    texts = "<user>How many?<assistant><assistant><assistant>No.<assistant>25"
    assert thinker.fakes.target.prompts[-1] == f"{texts}{json.dumps([call])}<tool 1>3"
