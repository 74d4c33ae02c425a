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


async def test_response_has_reasoning_answer_and_counts(thinker: Gateway) -> None:
    response = await answer(thinker)
    chat = (
        await thinker.chat(model=MODEL, messages=[{"role": "user", "content": THINKING}])
    ).json()
    message = chat["choices"][0]["message"]
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert response.output[0].content[0].text == message["reasoning_content"]
    assert response.output_text == message["content"] and response.status == "completed"
    assert response.usage.output_tokens == chat["usage"]["completion_tokens"]
    reasoning = chat["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert response.usage.output_tokens_details.reasoning_tokens == reasoning
    assert response.model_extra["semspec"]["seed"] == 7


async def test_events_build_the_response(thinker: Gateway) -> None:
    whole = await answer(thinker)
    events = [event async for event in await answer(thinker, stream=True)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events][:4] == [
        *(
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
        )
    ]
    reasoning = "".join(
        event.delta for event in events if event.type == "response.reasoning_text.delta"
    )
    assert reasoning == whole.output[0].content[0].text
    assert (
        "".join(e.delta for e in events if e.type == "response.output_text.delta")
        == whole.output_text
    )
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
    response = await answer(gateway, input="How many?", tools=[COUNT], model="semspec-demo")
    assert [item.type for item in response.output] == [
        "message",
        "function_call",
    ] and response.status == "completed"
    message, call = response.output
    assert (message.content[0].text, call.name, call.arguments) == (
        "Let me count.",
        "count",
        ARGUMENTS,
    )
    assert (
        response.tools[0].name == "count"
        and response.tool_choice == "auto"
        and response.parallel_tool_calls
    )
    again = await gateway.openai.responses.retrieve(response.id)
    assert again.output == response.output and again.tools == response.tools
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
    gateway.fakes.target.says = "Three."
    by_id = await answer(
        gateway,
        input=[result],
        tools=[COUNT],
        previous_response_id=response.id,
        model="semspec-demo",
    )
    items = [
        {"role": "user", "content": "How many?"},
        *(item.model_dump(exclude_none=True) for item in response.output),
        result,
    ]
    by_items = await answer(gateway, input=items, tools=[COUNT], model="semspec-demo")
    assert by_id.output_text == by_items.output_text == "Three."
    first, second = gateway.fakes.target.prompts[-2:]
    assert first == second and "count" in first and "3" in first


async def test_events_of_calls_build_the_response(gateway: Gateway) -> None:
    gateway.fakes.target.says = f"Let me count.\n{CALL}{CALL}"
    fields: Any = {"model": "semspec-demo", "input": "How many?", "tools": [COUNT]}
    async with gateway.openai.responses.stream(**fields, extra_body={"seed": 7}) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [item.type for item in final.output] == ["message", "function_call", "function_call"]
    done: Any = [event.item for event in events if event.type == "response.output_item.done"]
    output: Any = final.output
    assert [item.id for item in done] == [item.id for item in output] and len(
        {item.id for item in done}
    ) == 3
    told = [
        event.arguments for event in events if event.type == "response.function_call_arguments.done"
    ]
    assert told == [ARGUMENTS, ARGUMENTS]


async def test_choice_of_a_responses_tool_is_held_and_told(gateway: Gateway) -> None:
    gateway.fakes.target.says = CALL
    choice = {"type": "function", "name": "count"}
    response = await answer(
        gateway,
        input="How many?",
        tools=[COUNT],
        tool_choice=choice,
        parallel_tool_calls=False,
        model="semspec-demo",
    )
    assert [item.type for item in response.output] == ["function_call"]
    assert response.tool_choice.name == "count" and response.parallel_tool_calls is False
    assert "FREE" not in gateway.fakes.target.grammars[-1]


async def test_events_have_names_as_openais_do(thinker: Gateway) -> None:
    response = await thinker.http.post(
        "/v1/responses", json={"model": MODEL, "input": THINKING, "stream": True}
    )
    assert (
        response.text.startswith("event: response.created\ndata: {")
        and "[DONE]" not in response.text
    )


@pytest.mark.parametrize("stream", [False, True])
async def test_response_cut_by_its_budget_is_incomplete(thinker: Gateway, stream: bool) -> None:
    response = await answer(thinker, max_output_tokens=10, stream=stream)
    if stream:
        events = [event async for event in response]
        assert events[-1].type == "response.incomplete"
        response = events[-1].response
    assert (
        response.status == "incomplete"
        and response.incomplete_details.reason == "max_output_tokens"
    )
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
    assert stored.status == "in_progress" and stored.output[0].content[0].text.startswith(
        "target 0"
    )
    with pytest.raises(openai.ConflictError, match="only a finished one can be followed"):
        await answer(thinker, previous_response_id=id)
    await thinker.http.post(f"/v1/generations/{id}/cancel")
    assert (await thinker.openai.responses.retrieve(id)).status == "cancelled"
    await stream.close()


async def test_following_response_gets_the_turns_but_not_the_instructions(thinker: Gateway) -> None:
    first = await answer(thinker, instructions="Be brief.")
    second = await answer(thinker, input="Sure?", previous_response_id=first.id)
    third = await answer(
        thinker, input=[{"role": "user", "content": "Really?"}], previous_response_id=second.id
    )
    assert third.previous_response_id == second.id
    expected = f"<user>{THINKING}<assistant>{first.output_text}<user>Sure?"
    assert second.output_text and thinker.fakes.target.prompts[-2] == expected
    assert (
        thinker.fakes.target.prompts[-1]
        == f"{expected}<assistant>{second.output_text}<user>Really?"
    )


async def test_output_can_be_sent_back_as_input(thinker: Gateway) -> None:
    first = await answer(thinker)
    items = [{"role": "user", "content": THINKING}, *(item.model_dump() for item in first.output)]
    parts = [{"type": "input_text", "text": "Sure"}, {"type": "input_text", "text": "?"}]
    await answer(thinker, input=[*items, {"type": "message", "role": "user", "content": parts}])
    assert (
        thinker.fakes.target.prompts[-1]
        == f"<user>{THINKING}<assistant>{first.output_text}<user>Sure?"
    )


async def test_response_of_another_owner_does_not_exist(start_gateway: GatewayFactory) -> None:
    gateway = await start_gateway(api_keys=TWO_OWNERS)
    body = {"model": MODEL, "input": "How many?"}
    id = (await gateway.http.post("/v1/responses", json=body, headers=bearer(OURS))).json()["id"]
    for key, status in ((OURS, 200), (THEIRS, 404)):
        assert (
            await gateway.http.get(f"/v1/responses/{id}", headers=bearer(key))
        ).status_code == status
        following = {**body, "previous_response_id": id}
        assert (
            await gateway.http.post("/v1/responses", json=following, headers=bearer(key))
        ).status_code == status


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
    created = await anext(aiter(stream))
    id = created.response.id
    assert created.response.store is False
    await thinker.fakes.target.paused.wait()
    assert (await thinker.openai.responses.retrieve(id)).status == "in_progress", (
        "a broken stream can be resumed"
    )
    thinker.fakes.target.resume.set()
    events = [event async for event in stream]
    assert events[-1].type == "response.completed" and events[-1].response.store is False
    for path in (
        f"/v1/responses/{id}",
        *(f"/v1/generations/{id}{part}" for part in ("", "/trace", "/events")),
    ):
        assert_error(await thinker.http.get(path), 404, code="not_found")
    assert_error(await thinker.http.post(f"/v1/generations/{id}/cancel"), 404)
    with pytest.raises(openai.NotFoundError) as refused:
        await answer(thinker, previous_response_id=id)
    assert refused.value.param == "previous_response_id"


async def test_unstored_response_is_repeated_by_its_key(thinker: Gateway) -> None:
    body, headers = (
        {"model": MODEL, "input": THINKING, "store": False},
        {"idempotency-key": secrets.token_hex(8)},
    )
    first, again = [
        (await thinker.http.post("/v1/responses", json=body, headers=headers)).json()
        for _ in range(2)
    ]
    assert first["id"] == again["id"] and first["output"] == again["output"]


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
