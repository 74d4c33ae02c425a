"""Calls of tools and JSON by the chat template of Qwen2.5, which the target reads."""

import json
from typing import Any

import pytest
from jsonschema import validate  # type: ignore[import-untyped]

from tests.helpers.stack import Json
from tests.real.support import RealPair

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="package")]

WEATHER: Json = {
    "name": "get_weather",
    "description": "Get the current weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        },
        "required": ["city"],
        "additionalProperties": False,
    },
}
ADD: Json = {
    "name": "add",
    "description": "Add two numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}
FUNCTIONS = {function["name"]: function for function in (WEATHER, ADD)}
TOOLS = [{"type": "function", "function": function} for function in (WEATHER, ADD)]
IN_PARIS = "What is the weather in Paris?"


def calls_of(choice: Json) -> list[tuple[str, Any]]:
    """The names and arguments of valid calls, which alone a choice consists of."""
    assert choice["finish_reason"] == "tool_calls" and not choice["message"]["content"], choice
    calls = [call["function"] for call in choice["message"]["tool_calls"]]
    for call in calls:
        validate(json.loads(call["arguments"]), FUNCTIONS[call["name"]]["parameters"])
    return [(call["name"], json.loads(call["arguments"])) for call in calls]


async def test_model_calls_the_tool_that_a_question_needs(real: RealPair) -> None:
    [(name, arguments)] = calls_of(await real.choice(IN_PARIS, tools=TOOLS))
    assert name == "get_weather" and arguments["city"] == "Paris"
    [(name, arguments)] = calls_of(await real.choice("What is 2.5 + 4?", tools=TOOLS))
    assert (name, arguments) == ("add", {"a": 2.5, "b": 4})


async def test_result_of_a_call_leads_to_the_answer(real: RealPair) -> None:
    message = (await real.choice(IN_PARIS, tools=TOOLS))["message"]
    result = {
        "role": "tool",
        "tool_call_id": message["tool_calls"][0]["id"],
        "content": "18 degrees and light rain",
    }
    turns = [{"role": "user", "content": IN_PARIS}, message, result]
    choice = await real.choice(turns, tools=TOOLS, tool_choice="none")
    assert choice["finish_reason"] == "stop" and "18 degrees" in choice["message"]["content"]


SCHEMA: Json = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "size": {"enum": ["small", "large", None]},
        "address": {"$ref": "#/$defs/address"},
    },
    "required": ["name", "size", "address"],
    "additionalProperties": False,
    "$defs": {
        "address": {
            "type": "object",
            "properties": {"number": {"type": "integer"}},
            "required": ["number"],
            "additionalProperties": False,
        }
    },
}


async def test_answer_is_valid_by_its_schema(real: RealPair) -> None:
    format = {
        "type": "json_schema",
        "json_schema": {"name": "house", "schema": SCHEMA, "strict": True},
    }
    choice = await real.choice("Give an example of a house.", response_format=format)
    assert choice["finish_reason"] == "stop"
    validate(json.loads(choice["message"]["content"]), SCHEMA)


async def test_json_object_and_grammars_of_tgi_are_held(real: RealPair) -> None:
    question = "Give the name and the age of one made-up person as a JSON object with two keys."
    choice = await real.choice(question, response_format={"type": "json_object"}, max_tokens=80)
    assert choice["finish_reason"] == "stop" and len(json.loads(choice["message"]["content"])) >= 1
    regex = {"type": "regex", "value": "The answer is [0-9]{1,3}\\."}
    inputs = "<|im_start|>user\nWhat is 17 + 25?<|im_end|>\n<|im_start|>assistant\n"
    answer = await real.send(
        "/generate", inputs=inputs, parameters={"grammar": regex, "max_new_tokens": 20}
    )
    assert answer["generated_text"] == "The answer is 42."
