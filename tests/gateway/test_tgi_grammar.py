"""TGI's `grammar`: what the target is held to, and what is refused."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.gateway.fakes import Fakes
from tests.gateway.support import Gateway, GatewayFactory

SCHEMA = {"type": "object", "properties": {"number": {"enum": [1, 22]}}, "required": ["number"]}
CLOSED = {**SCHEMA, "additionalProperties": False}
JSON_GRAMMAR = {"type": "json", "value": SCHEMA}
REGEX = {"type": "regex", "value": "(yes|no), [0-9]{1,3}"}


async def ask(gateway: Gateway, inputs: str = "Once", semspec: Any = None, **parameters: Any) -> dict[str, Any]:
    response = await gateway.http.post(
        "/generate", json={"inputs": inputs, "parameters": {"seed": 7, **parameters}, "semspec": semspec}
    )
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


@pytest.mark.parametrize(
    "grammar",
    [
        JSON_GRAMMAR,
        {"type": "json", "value": json.dumps(SCHEMA)},
        {"type": "json_schema", "value": {"name": "count", "schema": SCHEMA}},
    ],
    ids=["object", "text", "named"],
)
async def test_schema_is_held_by_the_target_alone(gateway: Gateway, grammar: dict[str, Any]) -> None:
    gateway.fakes.target.says = '{"number": 22}'
    answer = await ask(gateway, grammar=grammar, details=True)
    assert answer["generated_text"] == '{"number": 22}' and answer["details"]["finish_reason"] == "eos_token"
    assert answer["semspec"]["strategy"] == "target" and gateway.fakes.drafter.read == []
    [held] = gateway.fakes.target.grammars
    assert held.startswith("start: answer\n") and json.dumps(SCHEMA)[:-1] in held


async def test_reasoning_comes_first_only_where_the_prompt_opens_it(gateway: Gateway) -> None:
    gateway.fakes.target.says = "Three.</think>\nyes, 3"
    answer = await ask(gateway, "How many?\n\n<think>\n\n", grammar=REGEX)
    assert answer["generated_text"] == "Three.</think>\nyes, 3"
    assert gateway.fakes.target.grammars[0].startswith("start: thought spaced\n")


async def test_stream_and_chosen_strategy_are_held_too(gateway: Gateway) -> None:
    gateway.fakes.drafter.says = "yes, 3"
    body = {"inputs": "Once", "parameters": {"grammar": REGEX}, "semspec": {"strategy": "draft"}}
    response = await gateway.http.post("/generate_stream", json=body)
    assert '"generated_text":"yes, 3"' in response.text.replace(": ", ":").replace("yes,3", "yes, 3")
    assert "\nanswer: /(yes|no), " in gateway.fakes.drafter.grammars[0]


@pytest.mark.parametrize(
    ("grammar", "named"),
    [
        ({"type": "regex", "value": "a(?=b)"}, "parameters.grammar.value: look-around"),
        ({"type": "regex", "value": "(a)\\1" + "b" * 400}, "parameters.grammar.value: backreferences"),
        ({"type": "regex", "value": "(a"}, "parameters.grammar.value: unclosed group"),
        ({"type": "regex", "value": "a\\bb"}, "parameters.grammar.value: lookarounds not supported"),
        ({"type": "regex", "value": "[^\\s\\S]"}, "parameters.grammar.value: no text matches it"),
        ({"type": "regex", "value": ""}, "parameters.grammar.value"),
        ({"type": "regex", "value": SCHEMA}, "parameters.grammar.value"),
        ({"type": "regex"}, "parameters.grammar.value"),
        ({"type": "json", "value": {"type": "objekt"}}, "parameters.grammar.value: Invalid type: objekt"),
        ({"type": "json", "value": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
        ({"type": "json", "value": {"type": "array", "maxItems": 10**9}}, "the limit is 10000"),
        ({"type": "json", "value": "{"}, "parameters.grammar.value: Input should be a JSON schema or its text"),
        ({"type": "json", "value": "[]"}, "parameters.grammar.value"),
        ({"type": "json_schema", "value": SCHEMA}, "parameters.grammar.value"),
        ({"type": "json_schema", "value": {"schema": {"type": 3}}}, "parameters.grammar.value.schema"),
        ({**REGEX, "strict": True}, "parameters.grammar.strict"),
        ("[0-9]+", "parameters.grammar"),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_wrong_grammar_is_refused_by_name(gateway: Gateway, grammar: Any, named: str) -> None:
    response = await gateway.http.post("/generate", json={"inputs": "Once", "parameters": {"grammar": grammar}})
    assert response.status_code == 422 and response.json()["error_type"] == "validation", response.text
    assert named in response.json()["error"] and "\n" not in response.json()["error"], response.text
    assert gateway.fakes.target.grammars == []


async def test_grammar_is_refused_where_it_cannot_be_held(start_gateway: GatewayFactory) -> None:
    fakes = Fakes.make()
    gateway = await start_gateway(fakes)
    body = {"inputs": "Once", "parameters": {"grammar": REGEX}, "semspec": {"strategy": "semantic"}}
    response = await gateway.http.post("/generate", json=body)
    assert response.status_code == 422 and "choose 'target'" in response.json()["error"]
    fakes.target.model_info = replace(fakes.target.model_info, supports_grammars=False)
    other = await start_gateway(fakes)
    response = await other.http.post("/generate", json={**body, "semspec": None})
    assert response.status_code == 422 and "parameters.grammar: " in response.json()["error"]


async def test_text_is_held_over_grpc_and_rest(spelling: Gateway) -> None:
    for seed in range(4):
        sampling: dict[str, Any] = {"seed": seed, "do_sample": True, "max_new_tokens": 90}
        held = await ask(spelling, grammar={"type": "json", "value": CLOSED}, **sampling)
        assert json.loads(held["generated_text"])["number"] in (1, 22)
        held = await ask(spelling, grammar={"type": "regex", "value": "(left|right)/[ab]{2,5}\\."}, **sampling)
        side, _, rest = held["generated_text"].partition("/")
        assert side in ("left", "right") and set(rest[:-1]) <= {"a", "b"} and rest[-1] == "."
