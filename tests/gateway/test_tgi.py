"""Text Generation Inference's API: answers, streams and refusals in its shapes."""

import json
import re
from typing import Any

import httpx
import pytest

from semspec.errors import Unavailable
from tests.helpers.gateway import Gateway, GatewayFactory
from tests.helpers.gateway_fakes import NUM_SEGMENTS, WINDOW, Fakes

Json = dict[str, Any]
SCHEMA: Json = {
    "type": "object",
    "properties": {"number": {"enum": [1, 22]}},
    "required": ["number"],
}


async def ask(
    gateway: Gateway, path: str = "/generate", semspec: Json | None = None, **parameters: Any
) -> Any:
    response = await post(gateway, path, semspec, **parameters)
    assert response.status_code == 200, response.text
    return response.json()


async def stream(gateway: Gateway, semspec: Json | None = None, **parameters: Any) -> list[Json]:
    response = await post(gateway, "/generate_stream", semspec, **parameters)
    assert response.headers["content-type"].startswith("text/event-stream")
    return events(response)


async def post(
    gateway: Gateway, path: str, semspec: Json | None = None, **parameters: Any
) -> httpx.Response:
    body = {
        "inputs": "Once",
        "parameters": {"seed": 7, "do_sample": True, **parameters},
        "semspec": semspec or {},
    }
    return await gateway.http.post(path, json=body)


def events(response: httpx.Response) -> list[Json]:
    lines = [line for line in response.text.split("\n") if line and not line.startswith("id: ")]
    assert all(line.startswith("data: {") for line in lines), "no [DONE], no named events"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def text_of(tokens: list[Json]) -> str:
    return "".join(token["text"] for token in tokens if not token["special"])


async def test_stream_has_an_event_a_token_and_the_end_in_the_last(gateway: Gateway) -> None:
    *before, last = chunks = await stream(gateway, details=True, top_n_tokens=2)
    text = (await ask(gateway))["generated_text"]
    assert [chunk["index"] for chunk in chunks] == list(range(1, len(chunks) + 1))
    assert text_of([chunk["token"] for chunk in chunks]) == text == last["generated_text"]
    assert {chunk["generated_text"] or chunk["details"] for chunk in before} == {None}
    for chunk in chunks:
        assert [one["text"] for one in chunk["top_tokens"]] == [chunk["token"]["text"]] * 2
    details = {"finish_reason": "eos_token", "generated_tokens": len(chunks)}
    assert last["details"] == {**details, "input_length": 4, "seed": 7}
    assert chunks[0]["semspec"]["id"] == last["semspec"]["id"]
    full = await ask(gateway, return_full_text=True)
    assert full["generated_text"] == f"Once{text}" and "details" not in full


async def test_stream_has_an_event_a_verification_where_logprobs_are_unknown(
    gateway: Gateway,
) -> None:
    chunks = await stream(gateway, {"strategy": "token-level"}, details=True)
    *before, last = tokens = [chunk["token"] for chunk in chunks]
    assert text_of(tokens) == chunks[-1]["generated_text"]
    assert len(tokens) > 5 * NUM_SEGMENTS
    for token in before:
        assert "\n\n" not in token["text"][:-2]
        assert token["logprob"] is None and token["id"] == ord(token["text"][-1])
    assert (last["special"], last["text"], last["logprob"]) == (True, "", None)
    assert chunks[-1]["details"]["generated_tokens"] == len(chunks[-1]["generated_text"])
    whole = await ask(gateway, semspec={"strategy": "token-level"}, details=True)
    assert text_of(whole["details"]["tokens"]) == text_of(tokens)
    assert len(whole["details"]["tokens"]) == NUM_SEGMENTS


async def test_root_answers_in_a_list_or_streams(gateway: Gateway) -> None:
    listed = await ask(gateway, "/")
    assert len(listed) == 1
    assert listed[0]["generated_text"] == (await ask(gateway))["generated_text"]
    streamed = await gateway.http.post(
        "/", json={"inputs": "Once", "parameters": {"seed": 7}, "stream": True}
    )
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert events(streamed)[-1]["generated_text"] == listed[0]["generated_text"]


@pytest.mark.parametrize("strategy", ["semantic", "token-level"])
@pytest.mark.parametrize("stop", ["says", ".\n\n"])
async def test_text_ends_with_the_stop_sequence(gateway: Gateway, stop: str, strategy: str) -> None:
    options, until = {"strategy": strategy}, [stop, "never"]
    text = (await ask(gateway, semspec=options))["generated_text"]
    expected = text[: text.index(stop) + len(stop)]
    whole = await ask(gateway, semspec=options, stop=until, details=True)
    chunks = await stream(gateway, options, stop=until, details=True)
    tokens = [chunk["token"] for chunk in chunks]
    for answer, shown in ((whole, whole["details"]["tokens"]), (chunks[-1], tokens)):
        assert answer["generated_text"] == text_of(shown) == expected
        assert answer["details"]["finish_reason"] == "stop_sequence"


@pytest.mark.parametrize(
    ("settings", "num_tokens"), [({}, 1024), ({"defaults": {"max_tokens": 3000}}, 3000)]
)
async def test_text_without_a_budget_has_the_default_of_tgi_or_the_operator(
    start_gateway: GatewayFactory, settings: Json, num_tokens: int
) -> None:
    large = {"max_context_tokens": 100_000}
    gateway = await start_gateway(Fakes.make().told(drafter=large, target=large), **settings)
    answer = await gateway.http.post("/generate", json={"inputs": "\0"})
    assert answer.json()["semspec"]["parameters"]["max_tokens"] == num_tokens
    chat = (await gateway.chat()).json()["semspec"]["parameters"]
    assert chat["max_tokens"] == settings.get("defaults", {}).get("max_tokens", 25_000)


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
        answer = (
            await gateway.http.post("/generate", json={"inputs": "Once", "parameters": parameters})
        ).json()
        used = answer["semspec"]["parameters"]
        assert (used["temperature"], used["top_p"], used["top_k"]) == (temperature, top_p, top_k)
        assert answer["details"]["seed"] == (7 if temperature else None)


@pytest.mark.parametrize(
    "grammar",
    [
        {"type": "json", "value": SCHEMA},
        {"type": "json", "value": json.dumps(SCHEMA)},
        {"type": "json_schema", "value": {"name": "count", "schema": SCHEMA}},
    ],
    ids=["object", "text", "named"],
)
async def test_schema_is_held_by_the_target_alone(gateway: Gateway, grammar: Json) -> None:
    gateway.fakes.target.says = '{"number": 22}'
    answer = await ask(gateway, grammar=grammar, details=True)
    assert answer["generated_text"] == '{"number": 22}'
    assert answer["details"]["finish_reason"] == "eos_token"
    assert answer["semspec"]["strategy"] == "target" and gateway.fakes.drafter.read == []
    [held] = gateway.fakes.target.grammars
    assert held.startswith("start: answer\n") and json.dumps(SCHEMA)[:-1] in held


async def test_lost_target_is_a_failed_generation(gateway: Gateway) -> None:
    gateway.fakes.target.lost = Unavailable("the target went away")
    lost = await post(gateway, "/generate")
    assert (lost.status_code, lost.json()) == (
        424,
        {"error": "the target went away", "error_type": "generation"},
    )


async def test_stream_that_breaks_ends_with_an_error(gateway: Gateway) -> None:
    gateway.fakes.target.lost_at = 3
    chunks = await stream(gateway, {"strategy": "target"})
    assert chunks[-1] == {"error": "the target went away", "error_type": "generation"}
    assert text_of([chunk["token"] for chunk in chunks[:-1]]).count("\n\n") == 2


@pytest.mark.parametrize("num_tokens", [1, 30, 45])
async def test_stream_of_tokens_cut_anywhere_loses_nothing(
    gateway: Gateway, num_tokens: int
) -> None:
    whole = await post(gateway, "/generate_stream", max_new_tokens=60)
    shown = [event["token"]["text"] for event in events(whole)]
    before = whole.text.split("data: ", num_tokens)[:num_tokens]
    last = re.findall(r"^id: (\d+)$", "".join(before), re.MULTILINE)
    attached = events(
        await gateway.events(whole.headers["x-generation-id"], after=last[-1] if last else "0")
    )
    rest = [event["token"]["text"] for event in attached]
    assert shown[-len(rest) :] == rest and num_tokens + len(rest) >= len(shown)


async def test_tokenize_tells_tokens_and_places(gateway: Gateway) -> None:
    tokens = (await gateway.http.post("/tokenize", json={"inputs": "ab"})).json()
    assert tokens == [
        {"id": 97, "text": "a", "start": 0, "stop": 1},
        {"id": 98, "text": "b", "start": 1, "stop": 2},
    ]


async def test_info_tells_model_and_bounds(gateway: Gateway) -> None:
    body = (await gateway.http.get("/info")).json()
    told = {"model_id": "semspec-demo", "max_total_tokens": WINDOW, "max_input_tokens": WINDOW - 1}
    told |= {"max_best_of": 1, "max_stop_sequences": 16, "max_concurrent_requests": 32}
    assert told.items() <= body.items()
    assert body["model_sha"] == gateway.fakes.target.model_info.fingerprint
