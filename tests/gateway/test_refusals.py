"""What is refused, and how it looks."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from semspec.errors import Unavailable
from semspec.gateway.api.shared.errors import TGI_PATHS
from tests.gateway.fakes import WINDOW, Fakes
from tests.gateway.support import MESSAGES, NO_REDIS, Gateway, GatewayFactory, eventually

JSON = {"content-type": "application/json"}
BODY = {"model": "semspec-demo", "messages": MESSAGES}

CALL = {"id": "call-1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def assert_openai_error(response: httpx.Response, status: int, code: str | None = None) -> dict[str, Any]:
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"] and body["error"]["type"]
    assert response.headers["x-request-id"]
    if code is not None:
        assert body["error"]["code"] == code
    error: dict[str, Any] = body["error"]
    return error


def semspec(**fields: Any) -> dict[str, Any]:
    return {"semspec": fields}


@pytest.mark.parametrize(
    ("change", "parameter"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages"),
        ({"messages": [{"role": "user", "content": "x" * WINDOW}]}, "messages"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages.0.content"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]}, "messages.0"),
        ({"messages": [{"role": "user", "content": "x", "tool_call_id": "1"}]}, "messages.0"),
        ({"messages": [{"role": "user", "content": "x", "name": "me"}]}, "messages.0.name"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [{}]}]}, "messages.0.tool_calls.0.id"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "text": ""}]}]}, "messages.0.content.0.type"),
        ({"max_tokens": WINDOW}, "messages"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "0.5"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 9}, "n"),
        ({"n": 0}, "n"),
        ({"seed": 1 << 63}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["x", "y" * 257]}, "stop.1"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": 7}, "stop"),
        ({"logprobs": 5}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, **semspec(strategy="token-level")}, "logprobs"),
        (semspec(strategy="retrieval", retrieval={"gate": "soft"}), "semspec.retrieval.gate"),
        (semspec(retrieval={"gate": "loose"}), "semspec.retrieval.gate"),
        ({"top_k": -2}, "top_k"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"temprature": 1}, "temprature"),
        (semspec(gamma=0), "semspec.gamma"),
        (semspec(gamma=9), "semspec.gamma"),
        (semspec(gamma=True), "semspec.gamma"),
        (semspec(strategy="psychic"), "semspec.strategy"),
        (semspec(num_speculative_tokens=0), "semspec.num_speculative_tokens"),
        (semspec(strategy="token-level", num_speculative_tokens=17), "semspec.num_speculative_tokens"),
        (semspec(rewrite="token-level", num_speculative_tokens=17), "semspec.num_speculative_tokens"),
        (semspec(strategy="retrieval", num_speculative_tokens=65), "semspec.num_speculative_tokens"),
        (semspec(rewrite="draft"), "semspec.rewrite"),
        (semspec(probes="psychic"), "semspec.probes"),
        (semspec(token_gamma=4), "semspec.token_gamma"),
        (semspec(draft_ahead=False), "semspec.draft_ahead"),
        (semspec(acceptance={"score_method": "guess"}), "semspec.acceptance.score_method"),
        (semspec(strategy="spec-reason", acceptance={"threshold": 9.5}), "semspec.acceptance.threshold"),
        (semspec(strategy="likelihood", acceptance={"threshold": 1.5}), "semspec.acceptance.threshold"),
        (semspec(strategy="likelihood", acceptance={"threshold": -0.1}), "semspec.acceptance.threshold"),
        (semspec(strategy="likelihood", acceptance={"threshold": "high"}), "semspec.acceptance.threshold"),
        (semspec(segmentation="word"), "semspec.segmentation"),
        (semspec(acceptance={"rule": "threshold", "threshold": -1}), "semspec.acceptance.threshold"),
        (semspec(acceptance={"rule": "sample", "threshold": 1}), "semspec.acceptance"),
        (semspec(session="a b"), "semspec.session"),
        (semspec(strictness=1.5), "semspec.strictness"),
        (semspec(strictness=0.5, probes="surprisal"), "semspec.strictness"),
        (semspec(strictness=0.5, acceptance={"threshold": 1}), "semspec"),
        ({**semspec(session="a"), "n": 2}, "n"),
        ({**semspec(strategy="draft"), "model": "semspec-demo:target"}, "semspec.strategy"),
    ],
    ids=str,
)
async def test_bad_field_is_named_before_the_first_byte(
    gateway: Gateway, change: dict[str, Any], parameter: str
) -> None:
    for stream in (False, True):
        content = json.dumps({**BODY, "stream": stream, **change})
        response = await gateway.http.post("/v1/chat/completions", content=content, headers=JSON)
        error = assert_openai_error(response, 400)
        assert error["param"] == parameter and error["type"] == "invalid_request_error"
    assert gateway.fakes.num_writing == 0


@pytest.mark.parametrize(
    ("change", "parameter"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", 7]}, "prompt.1"),
        ({"prompt": [7, "a"]}, "prompt.1"),
        ({"prompt": [-1]}, "prompt.0"),
        ({"prompt": [[7], []]}, "prompt.1"),
        ({"prompt": ["a"] * 9}, "prompt"),
        ({"prompt": ["a"] * 3, "n": 3}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": "x" * WINDOW}, "prompt"),
        ({"echo": True}, "echo"),
        ({"best_of": 2}, "best_of"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        (semspec(session="a"), "semspec.session"),
    ],
    ids=str,
)
async def test_bad_field_of_a_plain_completion_is_named(
    gateway: Gateway, change: dict[str, Any], parameter: str
) -> None:
    body = {"model": "semspec-demo", "prompt": "Once", **change}
    error = assert_openai_error(await gateway.http.post("/v1/completions", json=body), 400)
    assert error["param"] == parameter


async def test_over_long_prompt_has_openais_code(gateway: Gateway) -> None:
    response = await gateway.chat(messages=[{"role": "user", "content": "x" * WINDOW}])
    assert_openai_error(response, 400, "context_length_exceeded")


@pytest.mark.parametrize("model", ["gpt-4", "semspec-demo:", "semspec-demo:psychic", "semspec-demo::target", ""])
async def test_unknown_model_is_not_found(gateway: Gateway, model: str) -> None:
    error = assert_openai_error(await gateway.chat(model=model), 404, "model_not_found")
    assert error["param"] == "model"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b'{"model": "\xff"}',
        b"[" * 100_000,
        b'{"seed": ' + b"9" * 5000,
    ],
    ids=lambda content: repr(content[:12]),
)
async def test_body_that_is_no_json_object_is_refused(gateway: Gateway, content: bytes) -> None:
    assert_openai_error(await gateway.http.post("/v1/chat/completions", content=content, headers=JSON), 400)


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity", "1e999"])
async def test_number_that_is_none_is_refused(gateway: Gateway, constant: str) -> None:
    content = json.dumps(BODY)[:-1] + f', "temperature": {constant}}}'
    response = await gateway.http.post("/v1/chat/completions", content=content, headers=JSON)
    assert assert_openai_error(response, 400)["param"] == "temperature"


@pytest.mark.parametrize("announced", [True, False])
async def test_body_over_the_limit_is_refused(start_gateway: GatewayFactory, announced: bool) -> None:
    gateway = await start_gateway(max_body_bytes=1024)
    content = json.dumps({**BODY, "user": "x" * 2000}).encode()

    async def chunks() -> Any:
        yield content[:1000]
        yield content[1000:]

    body = content if announced else chunks()
    response = await gateway.http.post("/v1/chat/completions", content=body, headers=JSON)
    assert_openai_error(response, 413, "request_too_large")


async def test_room_runs_out_and_comes_back(start_gateway: GatewayFactory) -> None:
    gateway = await start_gateway(max_concurrent=2, max_n=2, max_queued=0)
    async with gateway.held(1, stream=True) as running:
        error = await gateway.chat(n=2)
        assert_openai_error(error, 429, "overloaded")
        assert error.headers["retry-after"] == "1"
        assert (await gateway.chat(model="semspec-demo:draft")).status_code == 200
        await running.hang_up()
    await eventually(lambda: gateway.app.state.admission.num_running == 0)
    assert (await gateway.chat(n=2)).status_code == 200


async def test_unready_gateway_says_what_to_do(start_gateway: GatewayFactory) -> None:
    fakes = Fakes.make()
    fakes.drafter.lost = Unavailable("connection refused")
    gateway = await start_gateway(fakes, ready=False, redis_url=NO_REDIS)  # which knows of no other
    for response in (await gateway.http.get("/ready"), await gateway.chat(), await gateway.chat(stream=True)):
        assert_openai_error(response, 503, "service_unavailable")
        assert int(response.headers["retry-after"]) >= 1
    assert (await gateway.http.get("/health")).status_code == 200


def routes(gateway: Gateway) -> Iterator[tuple[str, str]]:
    for path, methods in gateway.app.openapi()["paths"].items():
        for method in () if path in TGI_PATHS else methods:
            yield method.upper(), path.replace("{id}", "unknown").replace("{name}", "unknown")


async def test_every_route_fails_in_openais_shape(gateway: Gateway) -> None:
    paths = dict.fromkeys(path for _, path in routes(gateway))
    assert len(paths) >= 9
    for path in paths:
        assert_openai_error(await gateway.http.patch(path), 405, "method_not_allowed")
    for method, path in routes(gateway):
        if "unknown" in path:
            assert_openai_error(await gateway.http.request(method, path), 404)
        elif method == "POST":
            assert_openai_error(await gateway.http.post(path, json={"unknown": 1}), 400)
    for path in ("/v1", "/docs", "/v1/chat", "/%ff"):
        assert_openai_error(await gateway.http.get(path), 404)
    assert_openai_error(await gateway.http.get("/v1/generations/%7Ba%7D/trace"), 400)
