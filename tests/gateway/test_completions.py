"""Answers, whole and streamed, as the openai client sees them."""

import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from semspec.decoding import STRATEGIES
from semspec.observability import KeyValueFormatter
from semspec.types import derive_seed
from tests.helpers.gateway import (
    MESSAGES,
    OWNER,
    Gateway,
    GatewayFactory,
    chunks,
    extra,
    stream_chat,
    text_of,
)
from tests.helpers.gateway_fakes import NUM_SEGMENTS, WINDOW
from tests.helpers.variants import VARIANTS


async def test_chat_answers_whole(gateway: Gateway) -> None:
    answer = await gateway.openai.chat.completions.create(
        model="semspec-demo", messages=MESSAGES, seed=7
    )
    message, statistics = answer.choices[0].message, extra(answer)
    assert (
        message.role == "assistant"
        and message.content
        and message.content.count("\n\n") == NUM_SEGMENTS - 1
    )
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None and answer.usage.completion_tokens == len(message.content)
    assert answer.usage.prompt_tokens == len("<user>How many?")
    assert (
        statistics["id"] == answer.id
        and statistics["seed"] == 7
        and statistics["strategy"] == "semantic"
    )
    assert (statistics["num_accepted"], statistics["num_rejected"]) == (4, 2)
    assert statistics["acceptance_rate"] == pytest.approx(4 / 6)
    target_written = sum(
        len(part) for part in message.content.split("\n\n") if part.startswith("target")
    )
    assert statistics["target_ratio"] == pytest.approx(
        target_written / len(message.content), abs=0.05
    )
    assert statistics["latency_ms"] > 0 and statistics["tokens_per_s"] > 0
    assert (
        statistics["fallback"] is None
        and statistics["degraded"] is False
        and "trace" not in statistics
    )


async def test_streamed_text_equals_whole_text(start_gateway: GatewayFactory) -> None:
    whole = await (await start_gateway()).openai.chat.completions.create(
        model="semspec-demo", messages=MESSAGES, seed=7
    )
    chunks = await stream_chat(await start_gateway())
    assert text_of(chunks) == whole.choices[0].message.content
    assert (
        chunks[0].choices[0].delta.role == "assistant" and chunks[0].choices[0].delta.content == ""
    )
    assert len(chunks) >= NUM_SEGMENTS + 2
    assert chunks[-1].choices[0].finish_reason == "stop" and chunks[-1].usage is None
    assert extra(chunks[-1])["num_segments"] == NUM_SEGMENTS
    assert all(chunk.model_extra == {} for chunk in chunks[:-1])


async def test_stream_has_no_named_events(gateway: Gateway) -> None:
    response = await gateway.chat(stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.text.split("\n\n")
    assert blocks[-1] == "" and blocks[-2] == "data: [DONE]"
    chunks = []
    for block in blocks[:-2]:
        *names, data = block.split("\n")
        assert all(name.startswith("id: ") for name in names) and data.startswith("data: ")
        chunks.append(json.loads(data.removeprefix("data: ")))
        assert {
            "id",
            "object",
            "created",
            "model",
            "system_fingerprint",
            "usage",
            "choices",
        } <= set(chunks[-1])
    choice = chunks[1]["choices"][0]
    assert choice["logprobs"] is None
    nothing = {
        "role": "assistant",
        "reasoning_content": None,
        "reasoning": None,
        "tool_calls": None,
    }
    assert nothing.items() <= choice["delta"].items()
    ids = [block.partition("\n")[0] for block in blocks if block.startswith("id: ")]
    whole = [id for id in ids if "." not in id]
    assert whole == [f"id: {number}" for number in range(1, NUM_SEGMENTS + 1)]
    assert [id.partition(".")[0] for id in ids if "." in id] == ["id: 2"] * 2 + ["id: 5"] * 2, (
        "of those rewritten"
    )


LINE_ENDS = [
    character
    for character in map(chr, range(sys.maxunicode + 1))
    if len(f"a{character}b".splitlines()) > 1
]
"""All characters that Python takes for the end of a line."""
ODD_TEXT = f"one{'x'.join(LINE_ENDS)} end"
STREAMS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "stream": True},
    "/v1/completions": {"prompt": "Once", "stream": True},
    "/v1/responses": {"input": "How many?", "stream": True},
    "/generate_stream": {"inputs": "Once"},
}


def read_events_by_lines(response: httpx.Response) -> list[Any]:
    """Read the events of a stream like a client that splits the text by Python's rules."""
    lines = [line for line in response.text.splitlines() if line]
    assert all(line.startswith(("data: ", "event: ", "id: ")) for line in lines), lines
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]


def find_texts(value: Any) -> Iterator[str]:
    """Yield all texts in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from find_texts(part)


@pytest.mark.parametrize("path", STREAMS)
async def test_event_has_one_line_for_every_reader(gateway: Gateway, path: str) -> None:
    gateway.fakes.target.says = ODD_TEXT
    response = await gateway.http.post(
        path, json={**STREAMS[path], "semspec": {"strategy": "target", "trace": True}}
    )
    assert ODD_TEXT in find_texts(read_events_by_lines(response))


async def test_trace_is_the_same_everywhere(gateway: Gateway) -> None:
    chunks = await stream_chat(gateway, extra_body={"semspec": {"trace": True}})
    told = [chunk.model_extra["semspec"] for chunk in chunks[1:-1] if chunk.model_extra]
    streamed = [one["segment"] for one in told if "segment" in one]
    stored = await gateway.stored(chunks[0].id, "/trace")
    assert streamed == stored["segments"] == extra(chunks[-1])["trace"]
    assert stored["status"] == "finished" and stored["degraded"] is False
    assert [record["verdict"] for record in streamed] == ["accepted", "accepted", "rewritten"] * 2
    assert "".join(record["text"] for record in streamed) == text_of(chunks)
    rewritten = streamed[2]
    assert rewritten["writer"] == "target" and rewritten["rejected"]["writer"] == "draft"
    assert rewritten["ratio"] == 0 and 0 <= rewritten["draw"] < 1


async def test_stored_generation_can_be_read(gateway: Gateway) -> None:
    answer = (await gateway.chat(max_tokens=40, temperature=0)).json()
    stored = await gateway.stored(answer["id"])
    assert stored["status"] == "finished" and stored["finish_reason"] == "length"
    assert stored["usage"] == answer["usage"] and stored["usage"]["completion_tokens"] == 40
    assert stored["parameters"]["temperature"] == 0 and stored["parameters"]["max_tokens"] == 40
    assert stored["prompt"]["text"] == "<user>How many?" and stored["seed"] == 7
    assert stored["models"]["draft"] == gateway.fakes.drafter.model_info.fingerprint


@pytest.mark.parametrize("stream", [False, True])
async def test_choices_run_side_by_side_with_seeds_of_their_own(
    gateway: Gateway, stream: bool
) -> None:
    fields: dict[str, Any] = {"model": "semspec-demo:draft", "seed": 7, "n": 3}
    if stream:
        chunks = await stream_chat(gateway, **fields, stream_options={"include_usage": True})
        texts, last = [text_of(chunks, i) for i in range(3)], chunks[-1]
    else:
        last = await gateway.openai.chat.completions.create(messages=MESSAGES, **fields)
        texts = [choice.message.content for choice in last.choices]
    assert len(set(texts)) == 3
    statistics = extra(last)
    assert [choice["seed"] for choice in statistics["choices"]] == [
        7, derive_seed(7, "choice", 1), derive_seed(7, "choice", 2)
    ]  # fmt: skip
    assert last.usage is not None and last.usage.completion_tokens == sum(map(len, texts))
    assert last.usage.total_tokens == last.usage.prompt_tokens + last.usage.completion_tokens
    assert (last.choices == []) is stream
    for choice in statistics["choices"]:
        stored = await gateway.stored(choice["id"], "/trace")
        assert "".join(record["text"] for record in stored["segments"]) in texts


async def test_seed_is_drawn_and_reported(gateway: Gateway) -> None:
    first = (await gateway.chat(seed=None, model="semspec-demo:draft")).json()
    seed = first["semspec"]["seed"]
    second = (await gateway.chat(seed=seed, model="semspec-demo:draft")).json()
    assert second["choices"] == first["choices"] and second["semspec"]["seed"] == seed
    negative = await gateway.chat(seed=-1)
    assert negative.status_code == 200 and negative.json()["semspec"]["seed"] == -1


async def test_models_list_each_strategy(gateway: Gateway) -> None:
    names = [model.id async for model in gateway.openai.models.list()]
    assert names == ["semspec-demo", *(f"semspec-demo:{strategy}" for strategy in STRATEGIES)]
    assert (await gateway.openai.models.retrieve("semspec-demo:draft")).id == "semspec-demo:draft"
    for name in names[1:]:
        answer = (await gateway.chat(model=name)).json()
        assert answer["model"] == name and answer["semspec"]["strategy"] == name.partition(":")[2]
        assert answer["choices"][0]["message"]["content"] and answer["semspec"]["fallback"] is None


@pytest.mark.parametrize("probes", ["", "last-hidden", "surprisal"])
async def test_semantic_asks_the_verifier_for_the_probes_named(
    gateway: Gateway, probes: str
) -> None:
    assert (await gateway.chat(semspec={"probes": probes})).status_code == 200
    assert set(gateway.fakes.verifier.asked_for) == {probes}


@pytest.mark.parametrize("strategy", ["token-level", "semantic+token-level"])
async def test_proposed_tokens_that_were_kept_count_as_the_drafts(
    gateway: Gateway, strategy: str
) -> None:
    answer = (await gateway.chat(semspec={**VARIANTS[strategy], "trace": True})).json()
    statistics, by_target = (
        answer["semspec"],
        [r for r in answer["semspec"]["trace"] if r["writer"] == "target"],
    )
    num_proposed = sum(record["num_proposed_tokens"] for record in by_target)
    num_accepted = sum(record["num_accepted_tokens"] for record in by_target)
    assert (statistics["num_proposed_tokens"], statistics["num_accepted_tokens"]) == (
        num_proposed,
        num_accepted,
    )
    assert 0 < num_accepted < num_proposed
    written = sum(record["num_tokens"] for record in by_target)
    total = answer["usage"]["completion_tokens"]
    assert statistics["target_ratio"] == pytest.approx((written - num_accepted) / total)
    assert await gateway.metric("semspec_gateway_proposed_tokens_total") == num_proposed
    assert await gateway.metric("semspec_gateway_accepted_tokens_total") == num_accepted


async def test_knobs_are_told_and_stored(start_gateway: GatewayFactory) -> None:
    gateway = await start_gateway(defaults={"gamma": 3})
    asked = {"rewrite": "token-level", "num_candidates": 2, "num_speculative_tokens": 7}
    answer = (await gateway.chat(n=2, semspec={**asked, "acceptance": {"threshold": 0.7}})).json()
    parameters = answer["semspec"]["parameters"]
    assert (
        parameters["gamma"],
        parameters["num_candidates"],
        parameters["num_speculative_tokens"],
    ) == (3, 2, 7)
    assert parameters["acceptance"] == {"rule": "threshold", "threshold": 0.7}
    for choice in answer["semspec"]["choices"]:
        assert (await gateway.stored(choice["id"]))["parameters"] == parameters


async def test_default_budget_is_a_quarter_of_the_window(gateway: Gateway) -> None:
    parameters = (await gateway.chat()).json()["semspec"]["parameters"]
    assert parameters["max_tokens"] == WINDOW // 4
    long = "x" * (WINDOW - 100)
    cut = await gateway.chat(messages=[{"role": "user", "content": long}])
    used = cut.json()["usage"]["prompt_tokens"]
    assert cut.json()["semspec"]["parameters"]["max_tokens"] == WINDOW - used < WINDOW // 4


async def test_default_budget_is_cut_to_the_window(start_gateway: GatewayFactory) -> None:
    gateway = await start_gateway(defaults={"max_tokens": 100_000})
    assert (await gateway.chat()).status_code == 200
    refused = await gateway.chat(max_completion_tokens=100_000)
    assert (
        refused.status_code == 400 and refused.json()["error"]["code"] == "context_length_exceeded"
    )


async def test_target_lost_mid_stream_ends_in_an_error_event(start_gateway: GatewayFactory) -> None:
    gateway = await start_gateway()
    gateway.fakes.target.lost_at = 2
    with pytest.raises(openai.APIError, match="went away"):
        await stream_chat(gateway, model="semspec-demo:target")
    response = await gateway.chat(stream=True, model="semspec-demo:target")
    last = json.loads(response.text.rstrip().rpartition("data: ")[2])
    error = {
        "message": "the target went away",
        "type": "server_error",
        "param": None,
        "code": "service_unavailable",
    }
    assert last == {"error": error}
    first = json.loads(response.text.partition("\n\n")[0].removeprefix("data: "))
    stored = await gateway.stored(first["id"], "/trace")
    assert stored["status"] == "failed" and len(stored["segments"]) == 2


@pytest.mark.parametrize("num_judged", [0, 1], ids=["at once", "mid-stream"])
async def test_defect_tells_nothing(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, num_judged: int
) -> None:
    judge = gateway.fakes.verifier.judge

    async def breaking(*arguments: Any, **named: Any) -> Any:
        if gateway.fakes.verifier.num_judged >= num_judged:
            raise KeyError("secret")
        return await judge(*arguments, **named)

    monkeypatch.setattr(gateway.fakes.verifier, "judge", breaking)
    response = await gateway.chat(stream=True)
    assert response.status_code == (200 if num_judged else 500) and "secret" not in response.text
    assert (
        chunks(response)[-1]["error"]["code"] == "internal_error"
        and response.headers["x-request-id"]
    )


@pytest.mark.parametrize("log_prompts", [False, True])
async def test_line_has_texts_only_if_wanted(
    start_gateway: GatewayFactory, caplog: pytest.LogCaptureFixture, log_prompts: bool
) -> None:
    gateway = await start_gateway(log_prompts=log_prompts)
    with caplog.at_level(logging.DEBUG):
        answer = await gateway.openai.completions.create(
            model="semspec-demo:target", prompt="Once\nmore", seed=1
        )
    [record] = [record for record in caplog.records if record.getMessage() == "generation ended"]
    line = KeyValueFormatter().format(record)
    assert record.levelno == logging.INFO and "\n" not in line
    assert f"generation={answer.id} owner={OWNER} strategy=target status=finished " in line
    assert (
        answer.usage
        and f" num_tokens={answer.usage.completion_tokens} " in line
        and " duration_ms=" in line
    )
    assert answer.choices[0].text and (repr(answer.choices[0].text)[1:-1] in line) is log_prompts
    assert (r'prompt="Once\nmore" answer=' in line) is log_prompts and "Once" not in caplog.text
