"""What is refused, and how it looks."""

import json
from collections.abc import AsyncIterator
from functools import reduce
from math import nan
from typing import Any

import httpx
import pytest
import pytest_asyncio

from semspec.errors import Unavailable
from semspec_gateway.api.shared.errors import TGI_PATHS
from tests.helpers.gateway import (
    MESSAGES,
    NO_REDIS,
    Gateway,
    GatewayFactory,
    assert_error,
    eventually,
    make_settings,
    running_gateway,
)
from tests.helpers.gateway_fakes import NUM_TOKEN_IDS, WINDOW, Fakes

Json = dict[str, Any]
JSON = {"content-type": "application/json"}
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
RESPONSES = "/v1/responses"
GENERATE = "/generate"
BODIES: dict[str, Json] = {
    CHAT: {"messages": MESSAGES},
    TEXT: {"prompt": "Once"},
    RESPONSES: {"input": "How many?"},
    **{path: {"inputs": "Once"} for path in (GENERATE, "/generate_stream", "/")},
}
"""Sound ones, of the routes that answer."""
STREAMED: dict[str, tuple[str, Json]] = {
    **{path: (path, {"stream": True}) for path in (CHAT, TEXT, RESPONSES)},
    GENERATE: ("/generate_stream", {}),
}
"""The path and the change of the body that a stream takes."""

LONE = "\ud800"
"""Half of a surrogate pair."""
DEEP = '{"a":' * 5000 + "1" + "}" * 5000
DEEP_LIST: list[Any] = reduce(lambda inner, _: [inner], range(900), [])
NESTED: Json = reduce(lambda inner, _: {"items": inner}, range(400), {})
NUMBER = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
CALL = {"id": "call-1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
LOOK = {"type": "function", "name": "look", "parameters": NUMBER}
SCHEMA, VALUE = "response_format.json_schema.schema", "parameters.grammar.value"


def semspec(**fields: Any) -> Json:
    return {"semspec": fields}


def turn(**fields: Any) -> Json:
    return {"messages": [{"role": "user", "content": "x", **fields}]}


def called(arguments: str) -> Json:
    call = {**CALL, "function": {"name": "f", "arguments": arguments}}
    return {
        "messages": [
            *MESSAGES,
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "content": "3"},
        ]
    }


def tool(name: str = "count", **fields: Any) -> Json:
    return {"type": "function", "function": {"name": name, **fields}}


def schema(description: str = "", **keywords: Any) -> Json:
    """A format with a schema of these keywords."""
    named = {"name": "x", "description": description, "schema": keywords, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def format(**fields: Any) -> Json:
    """Of a response's text."""
    return {"text": {"format": {"type": "json_schema", "name": "count", **fields}}}


def variables(**values: Any) -> Json:
    return {"chat_template_kwargs": values}


def tgi(**parameters: Any) -> Json:
    return {"parameters": parameters}


def grammar(type: str, value: Any = None, **fields: Any) -> Json:
    return tgi(grammar={"type": type, "value": value, **fields})


WITH_EFFECT: list[tuple[Any, ...]] = [
    ({name: value}, name, f"{name} is not supported with this value; leave it out")
    for name, value in (
        ("structured_outputs", {"json": {}}),
        ("stop_token_ids", [7]),
        ("skip_special_tokens", False),
    )
]
REFUSED: dict[str, list[tuple[Any, ...]]] = {
    CHAT: [
        (turn(content=""), "messages"),
        (turn(content="x" * WINDOW), "messages"),
        (turn(content=LONE), "messages.0.content"),
        (turn(role="function"), "messages.0", "the function's name"),
        (turn(content=None), "messages.0"),
        (turn(tool_calls=[CALL]), "messages.0"),
        (turn(function_call=CALL["function"]), "messages.0", "only an assistant's"),
        (turn(refusal="No."), "messages.0", "only an assistant's"),
        (turn(role="tool", content=None), "messages.0", "content is missing"),
        (turn(role="assistant", audio={"id": "audio-1"}), "messages.0.audio", "leave it out"),
        (turn(role="assistant", prefix=True), "messages.0.prefix", "leave it out"),
        (
            turn(role="assistant", tool_calls=[CALL], function_call=CALL["function"]),
            "messages.0",
            "give one of them",
        ),
        (
            turn(role="assistant", tool_calls=[{**CALL, "type": "custom"}]),
            "messages.0.tool_calls.0.type",
            "leave out",
        ),
        (turn(content=[{"type": "image_url", "text": ""}]), "messages.0.content.0.type"),
        (called(DEEP), "messages.1.tool_calls.0.function.arguments"),
        (called(f'{{"a": "{LONE}"}}'), "messages.1.tool_calls.0.function.arguments"),
        ({"max_tokens": WINDOW}, "messages"),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "max_tokens"),
        ({"temperature": nan}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"temperature": 1e-300}, "temperature"),
        ({"repetition_penalty": 1e-300}, "repetition_penalty"),
        ({"n": 9}, "n"),
        ({"seed": 10**4000}, "seed"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, **semspec(strategy="token-level")}, "logprobs"),
        ({"logit_bias": {str(NUM_TOKEN_IDS): 1}}, "logit_bias", f"ids are below {NUM_TOKEN_IDS}"),
        ({"tools": [tool(parameters={"title": LONE})]}, "tools.0.function.parameters"),
        (
            {"tools": [tool(), tool("f", parameters={"type": 3})]},
            "tools.1.function.parameters",
            "type",
        ),
        (
            {"tools": [{"type": "web_search"}]},
            "tools.0.type",
            "'function', the only type",
            "leave out",
        ),
        ({"verbosity": "low"}, "verbosity", "leave it out"),
        ({"tools": [tool(), tool()]}, "tools", "the same name"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"tools": [tool("sell")], "tool_choice": tool()}, "tool_choice", "no tool 'count'"),
        ({"tools": [tool()], **schema()}, "response_format", "without tools"),
        ({"response_format": {"type": "yaml"}}, "response_format.type", "json_object"),
        (
            {"response_format": {"type": "json_schema"}},
            "response_format",
            "json_schema goes with the type",
        ),
        (
            {"response_format": {"type": "json_object", "json_schema": {"name": "x"}}},
            "response_format",
            "goes with",
        ),
        (schema(type="objekt"), SCHEMA, "Invalid type: objekt"),
        (schema(type="array", uniqueItems=True), SCHEMA, "uniqueItems"),
        (schema(**{"$ref": "http://127.0.0.1:1/schema"}), SCHEMA, "does not fetch"),
        (schema(**{"$ref": "#"}), SCHEMA, "no JSON is valid by it"),
        (schema(items=NESTED), SCHEMA, "deeper than 100"),
        (schema(type="array", maxItems=10**9), SCHEMA, "the limit is 10000"),
        (
            {**schema(type="object"), **semspec(strategy="semantic")},
            "semspec.strategy",
            "choose 'target'",
        ),
        (
            {**schema(type="object"), "model": "semspec-demo:token-level"},
            "model",
            "choose 'target'",
        ),
        (
            variables(thinking=True),
            "chat_template_kwargs.thinking",
            "has no variable 'thinking'",
            "it has: enable_th",
        ),
        (variables(messages="x"), "chat_template_kwargs.messages", "that a request may set"),
        (variables(enable_thinking=[1]), "chat_template_kwargs.enable_thinking", "a text of at"),
        (variables(enable_thinking=1e300), "chat_template_kwargs.enable_thinking", "2^31"),
        (
            {**variables(reasoning_effort="low"), "reasoning_effort": "high"},
            "reasoning_effort",
            "give one of them",
        ),
        ({"temprature": 1}, "temprature"),
        ({LONE: 1}, None),
        ({"unknown": DEEP_LIST}, "unknown"),
        *WITH_EFFECT,
        (semspec(strategy="psychic"), "semspec.strategy"),
        (
            semspec(strategy="token-level", num_speculative_tokens=17),
            "semspec.num_speculative_tokens",
        ),
        (
            semspec(strategy="retrieval", num_speculative_tokens=65),
            "semspec.num_speculative_tokens",
        ),
        (semspec(probes="psychic"), "semspec.probes"),
        (
            semspec(strategy="likelihood", acceptance={"threshold": 1.5}),
            "semspec.acceptance.threshold",
        ),
        (semspec(acceptance={"rule": "sample", "threshold": 1}), "semspec.acceptance"),
        (semspec(strictness=0.5, probes="surprisal"), "semspec.strictness"),
        (semspec(strictness=0.5, acceptance={"threshold": 1}), "semspec"),
        ({**semspec(session="a"), "n": 2}, "n"),
        ({**semspec(strategy="draft"), "model": "semspec-demo:target"}, "semspec.strategy"),
    ],
    TEXT: [
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["a", 7]}, "prompt.1"),
        ({"prompt": [[7], []]}, "prompt.1"),
        ({"prompt": ["a"] * 9}, "prompt"),
        ({"prompt": ["a"] * 3, "n": 3}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": "x" * WINDOW}, "prompt"),
        ({"echo": True}, "echo"),
        ({"best_of": 2}, "best_of"),
        (variables(enable_thinking=False), "chat_template_kwargs"),
        ({"stream": False, "stream_options": {"include_usage": True}}, "stream_options"),
        (semspec(session="a"), "semspec.session"),
        *WITH_EFFECT,
    ],
    RESPONSES: [
        ({"input": ""}, "input"),
        ({"input": [{"type": "web_search_call", "id": "1"}]}, "input.0.type", "leave out"),
        ({"input": [{"type": "item_reference", "id": "1"}]}, "input.0.type", "'function_call'"),
        ({"input": [{"type": "message", "role": "user"}]}, "input.0", "content is missing"),
        ({"include": ["message.output_text.logprobs"]}, "include.0", "reasoning.encrypted_content"),
        ({"tools": [{"type": "custom", "name": "patch"}]}, "tools.0.type", "leave out"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input.0.call_id"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input.0.content.0.type",
        ),
        (
            {"input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": DEEP}]},
            "input.0.arguments",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", "leave out"),
        (
            {"tools": [LOOK], "tool_choice": {"type": "function", "name": "other"}},
            "tool_choice",
            "no tool 'other'",
        ),
        (
            {"tools": [LOOK], "text": {"format": {"type": "json_object"}}},
            "text.format",
            "is only served without tools",
        ),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        (format(schema={"type": 3}), "text.format.schema"),
        (format(), "text.format"),
        ({"text": {"format": {"type": "json_object", "strict": True}}}, "text.format"),
        ({"background": True}, "background", "leave it out"),
        ({"truncation": "auto", "input": "x" * WINDOW}, "input"),
        ({"previous_response_id": "resp-unknown", **semspec(session="a")}, "semspec.session"),
    ],
    GENERATE: [
        ({"inputs": ""}, "inputs"),
        ({"model": "other"}, "model"),
        (tgi(best_of=2), "parameters.best_of"),
        (tgi(decoder_input_details=True), "parameters.decoder_input_details"),
        (tgi(frequency_penalty=0.1), "parameters.frequency_penalty"),
        (tgi(temperature=1e-30), "parameters.temperature"),
        (tgi(max_new_tokens=WINDOW), "", "window"),
        ({**tgi(top_n_tokens=2), **semspec(strategy="token-level")}, "top_n_tokens"),
        (tgi(grammar="[0-9]+"), "parameters.grammar"),
        (grammar("yaml", {}), "parameters.grammar", "Input should be an object whose type is"),
        (grammar("regex", "(a"), VALUE, "unclosed group"),
        (grammar("regex", "a\\bb"), VALUE, "lookarounds not supported"),
        (grammar("regex", "[^\\s\\S]"), VALUE, "no text matches it"),
        (grammar("json", {"type": "objekt"}), VALUE, "Invalid type: objekt"),
        (grammar("json", "{"), VALUE, "Input should be a JSON schema or its text"),
        (grammar("json", DEEP), VALUE),
        (grammar("json_schema", {"schema": {"type": 3}}), f"{VALUE}.schema"),
        ({**grammar("regex", "a"), **semspec(strategy="semantic")}, "", "choose 'target'"),
        (semspec(session="mine"), "session"),
    ],
    "/generate_stream": [({"stream": False}, "stream", "/generate")],
    "/": [(tgi(best_of=2), "parameters.best_of")],
    "/tokenize": [
        ({"inputs": "Once", "add_special_tokens": True}, "add_special_tokens"),
        ({"prompt": "Once", "return_token_strs": True}, "return_token_strs"),
        ({"prompt": "Once", "inputs": "Once"}, "prompt"),
        (called(DEEP), "messages.1.tool_calls.0.function.arguments"),
    ],
    "/detokenize": [
        ({"tokens": []}, "tokens"),
    ],
}
"""By path: changes of a sound body, the field that is named in the error, and words of the message."""
ENCODED = ({"max_tokens": 2000}, {"prompt": ["a", ""]}, tgi(max_new_tokens=2000))
"""Changes that are found once prompts are encoded."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def refusing(redis_url: str) -> AsyncIterator[Gateway]:
    """A gateway whose target's chat template has variables."""
    fakes = Fakes.make().told(
        target={"template_variables": ("enable_thinking", "reasoning_effort")}
    )
    async with running_gateway(make_settings(redis_url=redis_url), fakes) as gateway:
        yield gateway


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("path", "change", "field", "words"),
    [
        (path, change, field, words)
        for path, rows in REFUSED.items()
        for change, field, *words in rows
    ],
    ids=lambda one: str(one)[:60],
)
async def test_bad_field_is_named_before_the_first_byte(
    refusing: Gateway, path: str, change: Json, field: str | None, words: list[str]
) -> None:
    refusing.fakes.target.prompts.clear()
    for asked, more, key in (
        (path, {}, {}),
        (*STREAMED.get(path, (path, {})), {"idempotency-key": "1"}),
    ):
        content = json.dumps({**BODIES.get(path, {}), **more, **change})
        response = await refusing.http.post(asked, content=content, headers={**JSON, **key})
        if path in TGI_PATHS:
            message = assert_tgi_error(response, 422)
            assert str(field) in message.partition(":")[0]
        else:
            message = assert_error(response, 400, param=field, type="invalid_request_error")[
                "message"
            ]
        assert (
            all(word in message for word in words) and "\n" not in message and len(message) < 1300
        ), message
    assert not refusing.fakes.target.asked and not refusing.fakes.drafter.asked
    assert change in ENCODED or not refusing.fakes.target.prompts


def assert_tgi_error(response: httpx.Response, status: int, error_type: str = "validation") -> str:
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error", "error_type"} and body["error_type"] == error_type
    return str(body["error"])


@pytest.mark.parametrize(
    "model", ["gpt-4", "semspec-demo:", "semspec-demo:psychic", "semspec-demo::target", "", LONE]
)
async def test_unknown_model_is_not_found(gateway: Gateway, model: str) -> None:
    content = json.dumps({**BODIES[CHAT], "model": model})
    response = await gateway.http.post(CHAT, content=content, headers=JSON)
    assert_error(response, 404, code="model_not_found", param="model")


@pytest.mark.parametrize("limit", ["max_concurrent", "max_concurrent_per_key"])
async def test_request_with_more_choices_than_can_run_at_once(
    start_gateway: GatewayFactory, limit: str
) -> None:
    gateway = await start_gateway(**{limit: 2})
    assert_error(await gateway.chat(n=3), 400, param="n")
    assert (await gateway.chat(n=2)).status_code == 200


async def test_room_runs_out_and_comes_back(start_gateway: GatewayFactory) -> None:
    gateway = await start_gateway(max_concurrent=2, max_queued=0)
    async with gateway.held(1, n=2, stream=True) as running:
        refused = await gateway.chat()
        assert_error(refused, 429, code="overloaded")
        assert refused.headers["retry-after"] == "1"
        refused = await gateway.http.post(GENERATE, json=BODIES[GENERATE])
        assert_tgi_error(refused, 429, "overloaded")
        assert refused.headers["retry-after"] == "1"
        await running.hang_up()
    await eventually(lambda: gateway.app.state.admission.num_running == 0)
    async with gateway.held(1, stream=True):
        assert_error(await gateway.chat(n=2), 429, code="overloaded")
        assert (await gateway.chat(model="semspec-demo:draft")).status_code == 200
    assert (await gateway.chat(n=2)).status_code == 200


async def test_unready_gateway_says_what_to_do(start_gateway: GatewayFactory) -> None:
    fakes = Fakes.make()
    fakes.drafter.lost = Unavailable("connection refused")
    gateway = await start_gateway(fakes, ready=False, redis_url=NO_REDIS)  # which knows of no other
    for response in (
        await gateway.http.get("/ready"),
        await gateway.chat(),
        await gateway.chat(stream=True),
    ):
        assert_error(response, 503, code="service_unavailable")
        assert int(response.headers["retry-after"]) >= 1
    assert (await gateway.http.get("/health")).status_code == 200


async def test_every_route_fails_in_the_shape_of_its_api(gateway: Gateway) -> None:
    described = {
        path.replace("{id}", "unknown").replace("{name}", "unknown"): methods
        for path, methods in gateway.app.openapi()["paths"].items()
        if path not in TGI_PATHS
    }
    assert len(described) >= 9
    for path, methods in described.items():
        assert_error(await gateway.http.patch(path), 405, code="method_not_allowed")
        for method in methods:
            if "unknown" in path:
                assert_error(await gateway.http.request(method, path), 404)
            elif method == "post":
                assert_error(await gateway.http.post(path, json={"unknown": 1}), 400)
    for path in ("/v1", "/docs", "/v1/chat", "/%ff"):
        assert_error(await gateway.http.get(path), 404)
    assert_error(await gateway.http.get("/v1/generations/%7Ba%7D/trace"), 400)
    for path in TGI_PATHS:
        assert_tgi_error(await gateway.http.delete(path), 405)
    for path in TGI_PATHS - {"/info"}:
        assert "unknown" in assert_tgi_error(
            await gateway.http.post(path, json={"inputs": "x", "unknown": 1}), 422
        )
        assert_tgi_error(await gateway.http.post(path, content=b"x" * 2_000_000), 413)
    assert (
        await gateway.metric('semspec_gateway_refusals_total{code="invalid_value"}')
        >= len(TGI_PATHS) - 1
    )
