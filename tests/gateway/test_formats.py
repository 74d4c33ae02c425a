"""JSON and calls of tools: what the models are held to, what the answer says, and what is refused."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from semspec.errors import InvalidRequest
from semspec.types import GeneratedSegment
from semspec_gateway.generation.parsers import CallParser, Delta
from tests.grammars.schemas import COSTLY
from tests.helpers.gateway import Gateway, GatewayFactory, assert_error
from tests.helpers.gateway_fakes import Fakes

SCHEMA = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
JSON_SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "count", "schema": SCHEMA, "strict": True},
}
OF_TGI = {"type": "json_object", "value": SCHEMA}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "count", "description": "Count.", "parameters": SCHEMA, "strict": True},
}
OTHER = {"type": "function", "function": {"name": "sell"}}
CALL = (
    '<tool_call>\n{"name": "count", "arguments": {"number": 3, "of": "</tool_call>"}}\n</tool_call>'
)
ARGUMENTS = '{"number": 3, "of": "</tool_call>"}'


@pytest.mark.parametrize(
    "format", [JSON_SCHEMA, {"type": "json_object"}, OF_TGI], ids=["schema", "object", "TGI"]
)
async def test_format_is_written_by_one_model_under_a_grammar(
    gateway: Gateway, format: dict[str, Any]
) -> None:
    gateway.fakes.target.says = '{"number": 3}'
    answer = (await gateway.chat(response_format=format)).json()
    assert answer["choices"][0]["message"]["content"] == '{"number": 3}'
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["semspec"]["strategy"] == "target"
    [grammar] = gateway.fakes.target.grammars
    assert "%json" in grammar and ("number" in grammar) is (format in (JSON_SCHEMA, OF_TGI))
    assert gateway.fakes.drafter.read == []
    plain = (await gateway.chat(response_format={"type": "text"})).json()
    assert plain["semspec"]["strategy"] == "semantic"
    assert set(gateway.fakes.drafter.grammars) == {""}
    gateway.fakes.drafter.says = '{"number": 4}'
    answer = (await gateway.chat(response_format=format, semspec={"strategy": "draft"})).json()
    assert answer["choices"][0]["message"]["content"] == '{"number": 4}'
    assert gateway.fakes.drafter.grammars[-1]


async def test_reasoning_that_the_prompt_opens_precedes_the_format(gateway: Gateway) -> None:
    messages = [{"role": "user", "content": "How many? <think>"}]
    gateway.fakes.target.says = 'Three.</think>\n{"number": 3}'
    message = (await gateway.chat(messages=messages, response_format=JSON_SCHEMA)).json()[
        "choices"
    ][0]["message"]
    assert (message["reasoning"], json.loads(message["content"])) == ("Three.", {"number": 3})
    assert gateway.fakes.target.grammars[0].startswith("start: thought spaced\n")
    await gateway.chat(response_format=JSON_SCHEMA)
    assert gateway.fakes.target.grammars[1].startswith("start: thought spaced | answer\n")


async def test_costly_schema_is_refused_while_others_are_served(gateway: Gateway) -> None:
    gateway.fakes.target.says = '{"number": 3}'
    costly = {"type": "json_schema", "json_schema": {"name": "x", "schema": COSTLY["patterns"]}}
    words = "too much time or memory"
    refusal = asyncio.create_task(gateway.chat(response_format=costly))
    await gateway.answer(response_format=JSON_SCHEMA)
    assert not refusal.done()
    assert words in assert_error(await refusal, 400)["message"]
    both = [TOOL, {"type": "function", "function": {"name": "f", "parameters": COSTLY["patterns"]}}]
    await gateway.refuse("tools", words, tools=both)


async def test_schema_that_is_too_complex_to_follow_is_the_clients_mistake(
    gateway: Gateway,
) -> None:
    async def too_complex(*_: Any) -> AsyncIterator[GeneratedSegment]:
        raise InvalidRequest(
            "the grammar has too many continuations at a token", "grammar", remedy="make it simpler"
        )
        yield

    gateway.fakes.target.generate = too_complex  # type: ignore[method-assign,assignment]
    await gateway.refuse("response_format", "too many continuations", response_format=JSON_SCHEMA)


async def test_keyword_that_cannot_be_held_is_ignored_unless_strict(gateway: Gateway) -> None:
    named = {"name": "x", "schema": {"type": "array", "uniqueItems": True}, "strict": False}
    assert (
        await gateway.chat(response_format={"type": "json_schema", "json_schema": named})
    ).status_code == 200


async def test_format_is_refused_where_the_target_takes_no_grammars(
    start_gateway: GatewayFactory,
) -> None:
    gateway = await start_gateway(Fakes.make().told(target={"supports_grammars": False}))
    words = "cannot be held to a format"
    await gateway.refuse("response_format", words, response_format=JSON_SCHEMA)
    await gateway.refuse("tools", words, tools=[TOOL])
    body = {"inputs": "Once", "parameters": {"grammar": {"type": "regex", "value": "yes|no"}}}
    response = await gateway.http.post("/generate", json=body)
    assert response.status_code == 422 and "parameters.grammar: " in response.json()["error"]
    await gateway.answer(tools=[TOOL], tool_choice="none")


async def test_tools_are_shown_and_their_calls_split_off(gateway: Gateway) -> None:
    gateway.fakes.target.says = f"Let me count.{CALL}\n{CALL}"
    answer = (await gateway.chat(tools=[TOOL, OTHER])).json()
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me count."
    calls = choice["message"]["tool_calls"]
    assert [call["function"] for call in calls] == [{"name": "count", "arguments": ARGUMENTS}] * 2
    assert len({call["id"] for call in calls}) == 2
    assert {call["type"] for call in calls} == {"function"}
    prompt = gateway.fakes.target.prompts[0]
    assert prompt.startswith("[{") and "strict" not in prompt and '"sell"' in prompt
    [grammar] = gateway.fakes.target.grammars
    assert "FREE" in grammar and "sell" in grammar
    messages = [{"role": "user", "content": "How many?"}, choice["message"]]
    messages[1] = {"role": "assistant", "content": None, "tool_calls": calls}
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "3"} for call in calls]
    assert (await gateway.chat(messages=[*messages, *results], tools=[TOOL])).status_code == 200


async def test_answer_without_a_call_is_a_text(gateway: Gateway) -> None:
    gateway.fakes.target.says = "Three <tool."
    [choice] = (await gateway.chat(tools=[TOOL])).json()["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", "Three <tool.")
    assert choice["message"]["tool_calls"] is None


async def test_streamed_calls_are_those_of_the_whole_answer(gateway: Gateway) -> None:
    gateway.fakes.target.says = f"Let me count.\n{CALL}{CALL}"
    fields: Any = {
        "model": "semspec-demo",
        "messages": [{"role": "user", "content": "How many?"}],
        "tools": [TOOL],
    }
    stream: Any = await gateway.openai.chat.completions.create(**fields, stream=True)
    chunks = [chunk.choices[0] async for chunk in stream]
    calls = [call for chunk in chunks for call in chunk.delta.tool_calls or ()]
    assert [call.index for call in calls] == [0, 1]
    assert {call.function.arguments for call in calls if call.function} == {ARGUMENTS}
    assert "".join(chunk.delta.content or "" for chunk in chunks) == "Let me count."
    assert chunks[-1].finish_reason == "tool_calls"


async def test_call_that_is_cut_stays_in_the_text(gateway: Gateway) -> None:
    gateway.fakes.target.says = CALL
    [choice] = (await gateway.chat(tools=[TOOL], max_tokens=30)).json()["choices"]
    assert choice["finish_reason"] == "length" and choice["message"]["tool_calls"] is None
    assert choice["message"]["content"] == CALL[:30]


async def test_choice_of_tools_decides_the_grammar(gateway: Gateway) -> None:
    gateway.fakes.target.says = CALL
    named = {"type": "function", "function": {"name": "count"}}
    for choice, is_parallel in (("required", True), (named, True), ("auto", False)):
        fields = {"tools": [TOOL, OTHER], "tool_choice": choice, "parallel_tool_calls": is_parallel}
        answer = (await gateway.chat(**fields)).json()
        assert answer["choices"][0]["finish_reason"] == "tool_calls", answer
    required, one, single = gateway.fakes.target.grammars
    assert "FREE" not in required and "sell" in required and ")*" in required
    assert "sell" not in one and ")*" not in one.partition("answer: ")[2].partition("\n")[0]
    assert "FREE" in single and ")*" not in single.partition("answer: ")[2].partition("\n")[0]
    await gateway.chat(tools=[TOOL], tool_choice="none")
    assert gateway.fakes.target.grammars[3:] and set(gateway.fakes.target.grammars[3:]) == {""}
    assert "count" not in gateway.fakes.target.prompts[-1]


async def test_session_keeps_the_calls(gateway: Gateway) -> None:
    gateway.fakes.target.says = CALL
    await gateway.chat(tools=[TOOL], semspec={"session": "counting"})
    result = [{"role": "tool", "content": "3"}]
    assert (
        await gateway.chat(messages=result, tools=[TOOL], semspec={"session": "counting"})
    ).status_code == 200
    assert '<assistant>[{"id": "call-' in gateway.fakes.target.prompts[-1]
    turns = (await gateway.http.get("/v1/sessions/counting")).json()["turns"]
    assert [turn["role"] for turn in turns] == ["user", "assistant", "tool", "assistant"]


def parsed(parser: CallParser, text: str, size: int) -> Delta:
    """What is seen of a text that arrives in pieces of this size."""
    seen = Delta()
    for start in range(0, len(text), size):
        seen += parser.split(text[start : start + size])
    return seen + parser.close()


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_calls_are_read_however_the_text_arrives(size: int) -> None:
    seen = parsed(CallParser("chatcmpl-a-1"), f"\n\nWell, <b>.{CALL}\n{CALL}\n", size)
    assert seen.content == "\n\nWell, <b>."
    assert [call.id for call in seen.calls] == ["call-a-1-0", "call-a-1-1"]
    assert {call.arguments for call in seen.calls} == {ARGUMENTS}


BARE_CALLS = {
    "compact": [f'{{"name": "count", "arguments": {ARGUMENTS}}}'] * 2,
    "block": ["```json\n{\n  ", f'"name": "count",\n  "arguments": {ARGUMENTS}\n}}', "\n```\n"],
    "marked": [f"```json\n{CALL}\n```"],
}


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize("form", BARE_CALLS)
def test_bare_calls_are_read_however_the_text_arrives(size: int, form: str) -> None:
    parser = CallParser("chatcmpl-a-1", ["sell", "count"])
    seen = parsed(parser, "".join(BARE_CALLS[form]), size)
    assert seen.content == "" and len(seen.calls) == (2 if form == "compact" else 1)
    assert {(call.name, call.arguments) for call in seen.calls} == {("count", ARGUMENTS)}


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "buy", "arguments": {}}',
        '```json\n{"count": 1}\n```',
        "```",
        '{"name": "count", "arguments": {"n',
        " \n",
    ],
)
@pytest.mark.parametrize("size", [1, 1000])
def test_text_that_is_no_bare_call_stays_whole(size: int, text: str) -> None:
    parser = CallParser("chatcmpl-a-1", ["sell", "count"])
    assert parsed(parser, text, size) == Delta(content=text)


async def test_text_of_a_response_has_its_format(gateway: Gateway) -> None:
    gateway.fakes.target.says = '{"number": 3}'
    text = {"format": {"type": "json_schema", "name": "count", "schema": SCHEMA, "strict": True}}
    answer = await gateway.answer("/v1/responses", input="How many?", text=text)
    assert answer["output"][0]["content"][0]["text"] == '{"number": 3}'
    assert "number" in gateway.fakes.target.grammars[0]


@pytest.mark.slow
@pytest.mark.parametrize("character", ["🦊", "中"])
async def test_character_over_the_end_of_a_segment_stays_whole(
    spelling: Gateway, character: str
) -> None:
    """A segment ends after 512 tokens at the latest, here inside a character of one token a byte."""
    length = 516 // len(character.encode()) + 2
    regex = {
        "type": "regex",
        "value": f"{'a' * (2 if character == '中' else 1)}{character}{{{length}}}",
    }
    body = {
        "inputs": "Once",
        "parameters": {"grammar": regex, "max_new_tokens": 700, "do_sample": True, "seed": 1},
    }
    answer = (await spelling.http.post("/generate", json=body)).json()
    assert re.fullmatch(regex["value"], answer["generated_text"])
    assert answer["semspec"]["num_segments"] == 2


async def test_text_ends_before_the_character_that_exceeds_the_budget(spelling: Gateway) -> None:
    """Whole, streamed, and as tokens; a continuation of the text has the format of the rest."""
    parameters = {
        "grammar": {"type": "regex", "value": "a🦊🦊b"},
        "do_sample": True,
        "seed": 1,
        "details": True,
    }
    for budget, text in ((1, "a"), (2, "a"), (4, "a"), (5, "a🦊"), (8, "a🦊"), (10, "a🦊🦊b")):
        body = {"inputs": "Once", "parameters": {**parameters, "max_new_tokens": budget}}
        whole = (await spelling.http.post("/generate", json=body)).json()
        assert whole["generated_text"] == text and whole["details"]["generated_tokens"] == budget
        assert "".join(token["text"] for token in whole["details"]["tokens"]) == text
        lines = (await spelling.http.post("/generate_stream", json=body)).text.splitlines()
        events = [
            json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")
        ]
        assert (
            "".join(event["token"]["text"] for event in events)
            == text
            == events[-1]["generated_text"]
        )
