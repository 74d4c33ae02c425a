"""Text Generation Inference's API: answers, streams and refusals in its shapes."""

import json
from typing import Any

import httpx
import pytest

from semspec.errors import Unavailable
from semspec.gateway.api.shared.errors import TGI_PATHS
from tests.gateway.fakes import NUM_SEGMENTS, WINDOW
from tests.gateway.support import Gateway, GatewayFactory, eventually

Json = dict[str, Any]
TOP_TOKENS: Json = {"inputs": "Once", "parameters": {"top_n_tokens": 2}}


async def ask(gateway: Gateway, path: str = "/generate", semspec: Json | None = None, **parameters: Any) -> Any:
    response = await post(gateway, path, semspec, **parameters)
    assert response.status_code == 200, response.text
    return response.json()


async def stream(gateway: Gateway, semspec: Json | None = None, **parameters: Any) -> list[Json]:
    response = await post(gateway, "/generate_stream", semspec, **parameters)
    assert response.headers["content-type"].startswith("text/event-stream")
    return events(response)


async def post(gateway: Gateway, path: str, semspec: Json | None = None, **parameters: Any) -> httpx.Response:
    body = {"inputs": "Once", "parameters": {"seed": 7, "do_sample": True, **parameters}, "semspec": semspec or {}}
    return await gateway.http.post(path, json=body)


def events(response: httpx.Response) -> list[Json]:
    lines = [line for line in response.text.split("\n") if line and not line.startswith("id: ")]
    assert all(line.startswith("data: {") for line in lines), "no [DONE], no named events"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def text_of(tokens: list[Json]) -> str:
    return "".join(token["text"] for token in tokens if not token["special"])


def assert_tgi_error(response: httpx.Response, status: int, error_type: str = "validation") -> str:
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error", "error_type"} and body["error_type"] == error_type
    message: str = body["error"]
    return message


async def test_generate_answers_whole(gateway: Gateway) -> None:
    answer = await ask(gateway, details=True)
    text, details = answer["generated_text"], answer["details"]
    assert gateway.fakes.target.prompts == ["Once"]
    assert text.count("\n\n") == NUM_SEGMENTS - 1 and text == text_of(details["tokens"])
    assert details["finish_reason"] == "eos_token" and details["seed"] == 7 and details["prefill"] == []
    assert details["generated_tokens"] == len(details["tokens"]) == len(text)
    assert all(token["logprob"] == -0.5 and token["id"] == ord(token["text"]) for token in details["tokens"])
    assert answer["semspec"]["num_segments"] == NUM_SEGMENTS and "top_tokens" not in details
    stored = await gateway.stored(answer["semspec"]["id"])
    assert stored["status"] == "finished" and stored["prompt"]["text"] == "Once"


async def test_details_and_prompt_are_given_only_if_asked(gateway: Gateway) -> None:
    bare, full = await ask(gateway), await ask(gateway, return_full_text=True)
    assert "details" not in bare and full["generated_text"] == "Once" + bare["generated_text"]
    assert (await stream(gateway, return_full_text=True))[-1]["generated_text"] == full["generated_text"]


async def test_stream_has_an_event_a_token_and_the_end_in_the_last(gateway: Gateway) -> None:
    chunks = await stream(gateway, details=True, top_n_tokens=2)
    whole = await ask(gateway)
    assert [chunk["index"] for chunk in chunks] == list(range(1, len(chunks) + 1))
    assert text_of([chunk["token"] for chunk in chunks]) == whole["generated_text"] == chunks[-1]["generated_text"]
    assert all(chunk["generated_text"] is None and chunk["details"] is None for chunk in chunks[:-1])
    assert all([other["text"] for other in chunk["top_tokens"]] == [chunk["token"]["text"]] * 2 for chunk in chunks)
    ended = {"finish_reason": "eos_token", "generated_tokens": len(chunks), "input_length": 4, "seed": 7}
    assert chunks[-1]["details"] == ended
    assert chunks[0]["semspec"]["id"] == chunks[-1]["semspec"]["id"]


@pytest.mark.parametrize("strategy", ["token-level", "spec-thinking"])
async def test_stream_has_an_event_a_segment_where_logprobs_are_unknown(gateway: Gateway, strategy: str) -> None:
    chunks = await stream(gateway, {"strategy": strategy}, details=True)
    tokens = [chunk["token"] for chunk in chunks]
    assert text_of(tokens) == chunks[-1]["generated_text"]
    assert [token["text"].count("\n\n") for token in tokens] == [1] * (NUM_SEGMENTS - 1) + [0, 0]
    assert all(token["logprob"] is None and token["id"] == ord(token["text"][-1]) for token in tokens[:-1])
    assert tokens[-1]["special"] and tokens[-1]["text"] == "" and tokens[-1]["logprob"] is None
    assert chunks[-1]["details"]["generated_tokens"] == len(chunks[-1]["generated_text"])
    whole = await ask(gateway, semspec={"strategy": strategy}, details=True)
    assert whole["details"]["tokens"] == tokens[:-1]


async def test_root_answers_in_a_list_or_streams(gateway: Gateway) -> None:
    listed = await ask(gateway, "/")
    assert len(listed) == 1 and listed[0]["generated_text"] == (await ask(gateway))["generated_text"]
    streamed = await gateway.http.post("/", json={"inputs": "Once", "parameters": {"seed": 7}, "stream": True})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert events(streamed)[-1]["generated_text"] == listed[0]["generated_text"]


@pytest.mark.parametrize("strategy", ["semantic", "token-level"])
@pytest.mark.parametrize("stop", ["says", ".\n\n"])
async def test_text_ends_with_the_stop_sequence(gateway: Gateway, stop: str, strategy: str) -> None:
    options, until = {"strategy": strategy}, [stop, "never"]
    text = (await ask(gateway, semspec=options))["generated_text"]
    whole = await ask(gateway, semspec=options, stop=until, details=True)
    chunks = await stream(gateway, options, stop=until, details=True)
    assert whole["generated_text"] == text[: text.index(stop) + len(stop)]
    assert text_of([chunk["token"] for chunk in chunks]) == chunks[-1]["generated_text"] == whole["generated_text"]
    assert text_of(whole["details"]["tokens"]) == whole["generated_text"]
    assert whole["details"]["finish_reason"] == chunks[-1]["details"]["finish_reason"] == "stop_sequence"


async def test_budget_ends_a_text(gateway: Gateway) -> None:
    answer = await ask(gateway, max_new_tokens=30, details=True)
    assert len(answer["generated_text"]) == 30 == answer["details"]["generated_tokens"]
    assert answer["details"]["finish_reason"] == "length"


async def test_sampling_is_as_tgi_would_sample(gateway: Gateway) -> None:
    cases: list[tuple[Json, float, float, int]] = [
        ({}, 0, 1, 0),
        ({"do_sample": False, "temperature": None, "top_p": None}, 0, 1, 0),
        ({"do_sample": True}, 1, 1, 0),
        ({"temperature": 0.5}, 0.5, 1, 0),
        ({"top_p": 0.9}, 1, 0.9, 0),
        ({"top_k": 4, "temperature": 0.7}, 0.7, 1, 4),
    ]
    for asked, temperature, top_p, top_k in cases:
        parameters = {"details": True, "seed": 7, **asked}
        answer = (await gateway.http.post("/generate", json={"inputs": "Once", "parameters": parameters})).json()
        used = answer["semspec"]["parameters"]
        assert (used["temperature"], used["top_p"], used["top_k"]) == (temperature, top_p, top_k)
        assert answer["details"]["seed"] == (7 if temperature else None)


async def test_unserved_parameter_is_refused_by_name(gateway: Gateway) -> None:
    cases: list[tuple[Json, str]] = [
        ({"best_of": 2}, "best_of"),
        ({"decoder_input_details": True}, "decoder_input_details"),
        ({"truncate": 5}, "truncate"),
        ({"typical_p": 0.9}, "typical_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"frequency_penalty": 0.1}, "frequency_penalty"),
        ({"watermark": True}, "watermark"),
        ({"grammar": {"type": "yaml", "value": {}}}, "grammar: Input should be an object whose type is"),
        ({"adapter_id": "lora"}, "adapter_id"),
        ({"temperature": 0}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"top_p": 1.5}, "top_p"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": "x"}, "stop"),
        ({"seed": -1}, "seed"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"max_new_tokens": WINDOW}, "window"),
        ({"top_n_tokens": 21}, "top_n_tokens"),
        ({"max_tokens": 5}, "max_tokens"),
    ]
    for parameters, named in cases:
        for path in ("/generate", "/generate_stream", "/"):
            assert named in assert_tgi_error(await post(gateway, path, **parameters), 422)


async def test_body_that_cannot_be_served_is_refused(gateway: Gateway) -> None:
    cases: list[tuple[str, Json, str]] = [
        ("/generate", {"inputs": ""}, "inputs"),
        ("/generate", {"inputs": "Once", "stream": True}, "/generate_stream"),
        ("/generate_stream", {"inputs": "Once", "stream": False}, "/generate"),
        ("/generate", {"inputs": "Once", "model": "other"}, "model"),
        ("/generate", {"inputs": "Once", "semspec": {"session": "mine"}}, "session"),
        ("/generate", {"inputs": "Once", "semspec": {"gamma": 99}}, "semspec.gamma"),
        ("/generate", {**TOP_TOKENS, "semspec": {"strategy": "token-level"}}, "top_n_tokens"),
        ("/tokenize", {"inputs": "Once", "add_special_tokens": True}, "add_special_tokens"),
    ]
    for path, body, named in cases:
        assert named in assert_tgi_error(await gateway.http.post(path, json=body), 422)


async def test_every_route_fails_in_the_shape_of_its_api(gateway: Gateway) -> None:
    for path in TGI_PATHS:
        assert_tgi_error(await gateway.http.delete(path), 405)
    for path in TGI_PATHS - {"/info"}:
        assert "unknown" in assert_tgi_error(await gateway.http.post(path, json={"inputs": "x", "unknown": 1}), 422)
        assert_tgi_error(await gateway.http.post(path, content=b"x" * 2_000_000), 413)
    assert await gateway.metric('semspec_gateway_refusals_total{code="invalid_value"}') == len(TGI_PATHS) - 1


async def test_overload_is_told_as_such(start_gateway: GatewayFactory) -> None:
    gateway = await start_gateway(max_concurrent=1, max_n=1, max_queued=0)
    async with gateway.held(1) as running:
        refused = await post(gateway, "/generate")
        assert_tgi_error(refused, 429, "overloaded")
        assert refused.headers["retry-after"]
        await running.hang_up()
    await eventually(lambda: gateway.app.state.admission.num_running == 0)
    assert (await post(gateway, "/generate", max_new_tokens=1)).status_code == 200


async def test_lost_target_is_a_failed_generation(gateway: Gateway) -> None:
    gateway.fakes.target.lost = Unavailable("the target went away")
    assert "target" in assert_tgi_error(await post(gateway, "/generate"), 424, "generation")


async def test_stream_that_breaks_ends_with_an_error(gateway: Gateway) -> None:
    gateway.fakes.target.lost_at = 3
    chunks = await stream(gateway, {"strategy": "target"})
    assert chunks[-1] == {"error": "the target went away", "error_type": "generation"}
    assert text_of([chunk["token"] for chunk in chunks[:-1]]).count("\n\n") == 2


async def test_stream_can_be_gone_on_with(start_gateway: GatewayFactory) -> None:
    first, second = await start_gateway(), await start_gateway()
    undisturbed = await stream(second)
    seen = await _hang_up_after(first, 2)
    events_of = f"/v1/generations/{seen[0]['semspec']['id']}/events"
    rest = await second.http.get(events_of, headers={"last-event-id": "2"})
    told = [chunk["token"] for chunk in (*seen, *events(rest))]
    assert told == [chunk["token"] for chunk in undisturbed], "not a token twice, not one missing"


async def _hang_up_after(gateway: Gateway, num_segments: int) -> list[Json]:
    """The events of so many segments; then the client goes."""
    gateway.fakes.drafter.pause_at = num_segments
    body, text = {"inputs": "Once", "parameters": {"seed": 7, "do_sample": True}}, ""
    async with gateway.http.stream("POST", "/generate_stream", json=body) as response:
        async for part in response.aiter_text():
            text += part
            if f"id: {num_segments}\n" in text and text.endswith("\n\n"):
                break
    await eventually(lambda: gateway.fakes.num_writing == 0)
    return [json.loads(line.removeprefix("data: ")) for line in text.split("\n") if line.startswith("data: ")]


async def test_tokenize_tells_tokens_and_places(gateway: Gateway) -> None:
    tokens = (await gateway.http.post("/tokenize", json={"inputs": "ab"})).json()
    assert tokens == [{"id": 97, "text": "a", "start": 0, "stop": 1}, {"id": 98, "text": "b", "start": 1, "stop": 2}]


async def test_info_tells_model_and_bounds(gateway: Gateway) -> None:
    body = (await gateway.http.get("/info")).json()
    assert body["model_id"] == "semspec-demo" and body["model_sha"] == gateway.fakes.target.model_info.fingerprint
    assert (body["max_total_tokens"], body["max_input_tokens"]) == (WINDOW, WINDOW - 1)
    assert (body["max_best_of"], body["max_stop_sequences"], body["max_concurrent_requests"]) == (1, 16, 32)
    fits = await post(gateway, "/generate", max_new_tokens=1)
    assert fits.status_code == 200
