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
REGEX: Json = {"type": "regex", "value": "(yes|no), [0-9]{1,3}"}


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


async def test_generate_answers_whole(gateway: Gateway) -> None:
    answer = await ask(gateway, details=True)
    text, details = answer["generated_text"], answer["details"]
    assert gateway.fakes.target.prompts == ["Once"]
    assert text.count("\n\n") == NUM_SEGMENTS - 1 and text == text_of(details["tokens"])
    assert (
        details["finish_reason"] == "eos_token"
        and details["seed"] == 7
        and details["prefill"] == []
    )
    assert details["generated_tokens"] == len(details["tokens"]) == len(text)
    assert all(
        token["logprob"] == -0.5 and token["id"] == ord(token["text"])
        for token in details["tokens"]
    )
    assert answer["semspec"]["num_segments"] == NUM_SEGMENTS and "top_tokens" not in details
    stored = await gateway.stored(answer["semspec"]["id"])
    assert stored["status"] == "finished" and stored["prompt"]["text"] == "Once"


async def test_details_and_prompt_are_given_only_if_asked(gateway: Gateway) -> None:
    bare, full = await ask(gateway), await ask(gateway, return_full_text=True)
    assert "details" not in bare and full["generated_text"] == "Once" + bare["generated_text"]
    assert (await stream(gateway, return_full_text=True))[-1]["generated_text"] == full[
        "generated_text"
    ]


async def test_stream_has_an_event_a_token_and_the_end_in_the_last(gateway: Gateway) -> None:
    chunks = await stream(gateway, details=True, top_n_tokens=2)
    whole = await ask(gateway)
    assert [chunk["index"] for chunk in chunks] == list(range(1, len(chunks) + 1))
    assert (
        text_of([chunk["token"] for chunk in chunks])
        == whole["generated_text"]
        == chunks[-1]["generated_text"]
    )
    assert all(
        chunk["generated_text"] is None and chunk["details"] is None for chunk in chunks[:-1]
    )
    assert all(
        [other["text"] for other in chunk["top_tokens"]] == [chunk["token"]["text"]] * 2
        for chunk in chunks
    )
    ended = {
        "finish_reason": "eos_token",
        "generated_tokens": len(chunks),
        "input_length": 4,
        "seed": 7,
    }
    assert chunks[-1]["details"] == ended
    assert chunks[0]["semspec"]["id"] == chunks[-1]["semspec"]["id"]


async def test_stream_has_an_event_a_verification_where_logprobs_are_unknown(
    gateway: Gateway,
) -> None:
    chunks = await stream(gateway, {"strategy": "token-level"}, details=True)
    tokens = [chunk["token"] for chunk in chunks]
    assert text_of(tokens) == chunks[-1]["generated_text"]
    assert len(tokens) > 5 * NUM_SEGMENTS and not any(
        "\n\n" in token["text"][:-2] for token in tokens
    )
    assert all(
        token["logprob"] is None and token["id"] == ord(token["text"][-1]) for token in tokens[:-1]
    )
    assert tokens[-1]["special"] and tokens[-1]["text"] == "" and tokens[-1]["logprob"] is None
    assert chunks[-1]["details"]["generated_tokens"] == len(chunks[-1]["generated_text"])
    whole = await ask(gateway, semspec={"strategy": "token-level"}, details=True)
    assert text_of(whole["details"]["tokens"]) == text_of(tokens)
    assert len(whole["details"]["tokens"]) == NUM_SEGMENTS


async def test_root_answers_in_a_list_or_streams(gateway: Gateway) -> None:
    listed = await ask(gateway, "/")
    assert (
        len(listed) == 1 and listed[0]["generated_text"] == (await ask(gateway))["generated_text"]
    )
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
    whole = await ask(gateway, semspec=options, stop=until, details=True)
    chunks = await stream(gateway, options, stop=until, details=True)
    assert whole["generated_text"] == text[: text.index(stop) + len(stop)]
    assert (
        text_of([chunk["token"] for chunk in chunks])
        == chunks[-1]["generated_text"]
        == whole["generated_text"]
    )
    assert text_of(whole["details"]["tokens"]) == whole["generated_text"]
    assert (
        whole["details"]["finish_reason"]
        == chunks[-1]["details"]["finish_reason"]
        == "stop_sequence"
    )


async def test_budget_ends_a_text(gateway: Gateway) -> None:
    answer = await ask(gateway, max_new_tokens=30, details=True)
    assert len(answer["generated_text"]) == 30 == answer["details"]["generated_tokens"]
    assert answer["details"]["finish_reason"] == "length"


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
    assert (
        answer["generated_text"] == '{"number": 22}'
        and answer["details"]["finish_reason"] == "eos_token"
    )
    assert answer["semspec"]["strategy"] == "target" and gateway.fakes.drafter.read == []
    [held] = gateway.fakes.target.grammars
    assert held.startswith("start: answer\n") and json.dumps(SCHEMA)[:-1] in held


async def test_reasoning_comes_first_only_where_the_prompt_opens_it(gateway: Gateway) -> None:
    gateway.fakes.target.says = "Three.</think>\nyes, 3"
    body = {"inputs": "How many?\n\n<think>\n\n", "parameters": {"grammar": REGEX}}
    answer = (await gateway.http.post("/generate", json=body)).json()
    assert answer["generated_text"] == "Three.</think>\nyes, 3"
    assert gateway.fakes.target.grammars[0].startswith("start: thought spaced\n")


async def test_stream_and_chosen_strategy_are_held_too(gateway: Gateway) -> None:
    gateway.fakes.drafter.says = "yes, 3"
    assert (await stream(gateway, {"strategy": "draft"}, grammar=REGEX))[-1][
        "generated_text"
    ] == "yes, 3"
    assert "\nanswer: /(yes|no), " in gateway.fakes.drafter.grammars[0]


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
    assert (
        body["model_id"] == "semspec-demo"
        and body["model_sha"] == gateway.fakes.target.model_info.fingerprint
    )
    assert (body["max_total_tokens"], body["max_input_tokens"]) == (WINDOW, WINDOW - 1)
    assert (body["max_best_of"], body["max_stop_sequences"], body["max_concurrent_requests"]) == (
        1,
        16,
        32,
    )
    fits = await post(gateway, "/generate", max_new_tokens=1)
    assert fits.status_code == 200
