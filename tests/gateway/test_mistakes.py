"""Mistakes of clients that are hard to parse: each gets a 4xx with one line that names the field."""

import json
from typing import Any

import pytest

from tests.gateway.support import Gateway

DEEP = '{"a":' * 5000 + "1" + "}" * 5000
LONE = "\\ud800"
"""Half of a surrogate pair, as JSON spells it."""
QUESTION = {"role": "user", "content": "How many?"}


def called(arguments: str) -> list[dict[str, Any]]:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [QUESTION, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "3"}]


def tool(description: str = "", **parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "description": description, "parameters": parameters}}


def response_tool(description: str = "", **parameters: Any) -> dict[str, Any]:
    return {"type": "function", "name": "f", "description": description, "parameters": parameters}


def response_format(description: str = "", **schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "description": description, "schema": schema}}


def text_format(**schema: Any) -> dict[str, Any]:
    return {"format": {"type": "json_schema", "name": "x", "schema": schema}}


ITEM = {"type": "function_call", "call_id": "1", "name": "f", "arguments": DEEP}
CASES: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", {"messages": called(DEEP)}, "messages.1.tool_calls.0.function.arguments"),
    ("/v1/responses", {"input": [ITEM]}, "input.0.arguments"),
    ("/tokenize", {"messages": called(DEEP)}, "messages.1.tool_calls.0.function.arguments"),
    ("/generate", {"inputs": "x", "parameters": {"grammar": {"type": "json", "value": DEEP}}}, "grammar.value"),
    ("/v1/chat/completions", {"messages": called('{"a": "LONE"}')}, "messages.1.tool_calls.0.function.arguments"),
    ("/v1/chat/completions", {"messages": [QUESTION], "tools": [tool("LONE")]}, "tools.0.function.description"),
    ("/v1/chat/completions", {"messages": [QUESTION], "tools": [tool(title="LONE")]}, "tools.0.function.parameters"),
    ("/v1/chat/completions", {"messages": [QUESTION], "response_format": response_format("LONE")}, "description"),
    ("/v1/chat/completions", {"messages": [QUESTION], "response_format": response_format(enum=["LONE"])}, "schema"),
    ("/v1/chat/completions", {"messages": [QUESTION], "response_format": response_format(LONE={})}, "schema"),
    ("/v1/responses", {"input": "x", "tools": [response_tool("LONE")]}, "tools.0.description"),
    ("/v1/responses", {"input": "x", "tools": [response_tool(properties={"LONE": {}})]}, "tools.0.parameters"),
    ("/v1/responses", {"input": "x", "text": text_format(description="LONE")}, "text.format.schema"),
    ("/generate", {"inputs": "x", "parameters": {"grammar": {"type": "regex", "value": "LONE"}}}, "grammar.value"),
    ("/v1/chat/completions", {"messages": [QUESTION], "model": "LONE"}, "model"),
    ("/v1/chat/completions", {"messages": [QUESTION], "repetition_penalty": 1e-300}, "repetition_penalty"),
    ("/v1/chat/completions", {"messages": [QUESTION], "temperature": 1e-300}, "temperature"),
    ("/v1/completions", {"prompt": "x", "top_p": 1e-300}, "top_p"),
    ("/v1/responses", {"input": "x", "temperature": 5e-324}, "temperature"),
    ("/generate", {"inputs": "x", "parameters": {"repetition_penalty": 1e-300}}, "parameters.repetition_penalty"),
    ("/generate", {"inputs": "x", "parameters": {"temperature": 1e-30}}, "parameters.temperature"),
]


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "one"}], ids=["plain", "idempotent"])
@pytest.mark.parametrize(("path", "body", "field"), CASES, ids=[f"{path} {field}" for path, _, field in CASES])
async def test_mistake_is_refused_by_name(
    gateway: Gateway, path: str, body: dict[str, Any], field: str, headers: dict[str, str]
) -> None:
    text = json.dumps(body).replace("LONE", LONE)
    response = await gateway.http.post(path, content=text, headers={"content-type": "application/json", **headers})
    message = response.json()["error"]
    message = message if isinstance(message, str) else message["message"]
    assert 400 <= response.status_code < 500, response.text
    assert field in message and "\n" not in message and len(message) < 1300
    assert gateway.fakes.target.prompts == []


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/generate", "/tokenize"])
async def test_body_that_is_nested_too_deep_is_refused(gateway: Gateway, path: str) -> None:
    text = '{"messages": ' + "[" * 100_000 + "]" * 100_000 + "}"
    response = await gateway.http.post(path, content=text, headers={"content-type": "application/json"})
    assert 400 <= response.status_code < 500


async def test_least_values_are_served(gateway: Gateway) -> None:
    fields = {"repetition_penalty": 0.01, "temperature": 1e-6, "top_p": 1e-6}
    assert (await gateway.chat(**fields)).status_code == 200
    assert (await gateway.chat(temperature=-0.0)).status_code == 200
