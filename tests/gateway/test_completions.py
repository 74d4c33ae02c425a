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
    assert_error,
    chunks,
    extra,
    stream_chat,
    text_of,
)
from tests.helpers.gateway_fakes import NUM_SEGMENTS, WINDOW
from tests.helpers.variants import VARIANTS


async def test_stream_has_no_named_events(gateway: Gateway) -> None:
    response = await gateway.chat(stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.text.split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""]
    lines = [line for block in blocks[:-2] for line in block.split("\n")]
    assert all(line.startswith(("id: ", "data: {")) for line in lines)
    first, second, *_ = chunks(response)
    assert first["choices"][0]["delta"]["role"] == "assistant" and first["usage"] is None
    assert second["choices"][0]["delta"]["tool_calls"] is None
    ids = [line.removeprefix("id: ") for line in lines if line.startswith("id: ")]
    whole = [id for id in ids if "." not in id]
    assert whole == [str(number) for number in range(1, NUM_SEGMENTS + 1)]
    partial = [id.partition(".")[0] for id in ids if "." in id]
    assert partial == ["2", "2", "5", "5"], "of segments that the target writes"


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
    answer = await gateway.answer(max_tokens=40, temperature=0)
    stored = await gateway.stored(answer["id"])
    assert (stored["status"], stored["finish_reason"], stored["seed"]) == ("finished", "length", 7)
    assert stored["usage"] == answer["usage"] and stored["usage"]["completion_tokens"] == 40
    assert stored["parameters"] == answer["semspec"]["parameters"]
    assert stored["prompt"]["text"] == "<user>How many?"
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
    first = await gateway.answer(seed=None, model="semspec-demo:draft")
    second = await gateway.answer(seed=first["semspec"]["seed"], model="semspec-demo:draft")
    assert second["choices"] == first["choices"]
    assert (await gateway.answer(seed=-1))["semspec"]["seed"] == -1


async def test_models_list_each_strategy(gateway: Gateway) -> None:
    names = [model.id async for model in gateway.openai.models.list()]
    assert names == ["semspec-demo", *(f"semspec-demo:{strategy}" for strategy in STRATEGIES)]
    assert (await gateway.openai.models.retrieve("semspec-demo:draft")).id == "semspec-demo:draft"
    for name in names[1:]:
        answer = (await gateway.chat(model=name)).json()
        assert answer["model"] == name and answer["semspec"]["strategy"] == name.partition(":")[2]
        assert answer["choices"][0]["message"]["content"] and answer["semspec"]["fallback"] is None


@pytest.mark.parametrize("strategy", ["token-level", "semantic+token-level"])
async def test_proposed_tokens_that_were_kept_count_as_the_drafts(
    gateway: Gateway, strategy: str
) -> None:
    answer = await gateway.answer(semspec={**VARIANTS[strategy], "trace": True})
    own = answer["semspec"]
    by_target = [record for record in own["trace"] if record["writer"] == "target"]
    for name in ("proposed", "accepted"):
        number = sum(record[f"num_{name}_tokens"] for record in by_target)
        assert number == own[f"num_{name}_tokens"] > 0
        assert await gateway.metric(f"semspec_gateway_{name}_tokens_total") == number
    written = sum(record["num_tokens"] for record in by_target) - own["num_accepted_tokens"]
    assert own["target_ratio"] == pytest.approx(written / answer["usage"]["completion_tokens"])


async def test_knobs_are_told_and_stored(start_gateway: GatewayFactory) -> None:
    gateway = await start_gateway(defaults={"gamma": 3})
    asked = {"rewrite": "token-level", "num_candidates": 2, "num_speculative_tokens": 7}
    own = (await gateway.answer(n=2, semspec={**asked, "acceptance": {"threshold": 0.7}}))[
        "semspec"
    ]
    told = {**asked, "gamma": 3, "acceptance": {"rule": "threshold", "threshold": 0.7}}
    assert told.items() <= own["parameters"].items()
    for choice in own["choices"]:
        assert (await gateway.stored(choice["id"]))["parameters"] == own["parameters"]


async def test_default_budget_is_a_quarter_of_the_window(gateway: Gateway) -> None:
    whole = await gateway.answer()
    assert whole["semspec"]["parameters"]["max_tokens"] == WINDOW // 4
    long = [{"role": "user", "content": "x" * (WINDOW - 100)}]
    cut = await gateway.answer(messages=long)
    used = cut["usage"]["prompt_tokens"]
    assert cut["semspec"]["parameters"]["max_tokens"] == WINDOW - used < WINDOW // 4


async def test_default_budget_is_cut_to_the_window(start_gateway: GatewayFactory) -> None:
    gateway = await start_gateway(defaults={"max_tokens": 100_000})
    await gateway.answer()
    refused = await gateway.chat(max_completion_tokens=100_000)
    assert_error(refused, 400, code="context_length_exceeded")


async def test_target_lost_mid_stream_ends_in_an_error_event(gateway: Gateway) -> None:
    gateway.fakes.target.lost_at = 2
    with pytest.raises(openai.APIError, match="went away"):
        await stream_chat(gateway, model="semspec-demo:target")
    first, *_, last = chunks(await gateway.chat(stream=True, model="semspec-demo:target"))
    error = {"message": "the target went away", "type": "server_error"}
    assert last == {"error": {**error, "param": None, "code": "service_unavailable"}}
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
    assert chunks(response)[-1]["error"]["code"] == "internal_error"
    assert response.headers["x-request-id"]


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
    assert answer.usage
    assert f" num_tokens={answer.usage.completion_tokens} " in line
    assert " duration_ms=" in line
    assert answer.choices[0].text and (repr(answer.choices[0].text)[1:-1] in line) is log_prompts
    assert (r'prompt="Once\nmore" answer=' in line) is log_prompts and "Once" not in caplog.text
