"""The option `exact_answer`: the answer behind the reasoning is the target's, on every route, streamed and resumed."""

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from semspec.reasoning import THINK
from semspec.types import Writer
from tests.gateway.engines import served
from tests.helpers.checkpoints import loaded, save_spelling_checkpoint
from tests.helpers.gateway import Gateway, GatewayFactory, assert_error, chunks
from tests.helpers.gateway_fakes import Fakes, Thinker

THINKING = "How many? <think>"
MESSAGES = [{"role": "user", "content": THINKING}]
EXACT: dict[str, Any] = {"exact_answer": True}
LOSSY: dict[str, dict[str, Any]] = {
    "semantic": {},
    "likelihood": {},
    "draft": {},
}
TOOL = {
    "type": "function",
    "function": {
        "name": "count",
        "parameters": {
            "type": "object",
            "properties": {"number": {"enum": [1, 22]}},
            "required": ["number"],
        },
        "strict": True,
    },
}


def thinkers() -> Fakes:
    """Both models end their reasoning in the fourth segment, and go on with the answer in it."""
    fakes = Fakes.make(Thinker(Writer.TARGET))
    return Fakes(Thinker(Writer.DRAFT), fakes.target, fakes.verifier)


@pytest.fixture
async def thinking(start_gateway: GatewayFactory) -> Gateway:
    return await start_gateway(thinkers())


def told(response: Any, index: int = 0) -> str:
    """Reasoning and answer of a choice of a stream."""
    choices = (
        choice
        for chunk in chunks(response)
        for choice in chunk["choices"]
        if choice["index"] == index
    )
    deltas = [choice["delta"] for choice in choices]
    return "".join(
        (one.get("reasoning_content") or "") + (one.get("content") or "") for one in deltas
    )


def content(answer: Any, index: int = 0) -> str:
    message = answer["choices"][index]["message"]
    return str(message["reasoning_content"] + THINK.closing + message["content"])


@pytest.mark.parametrize("strategy", LOSSY)
async def test_draft_writes_nothing_behind_the_reasoning(thinking: Gateway, strategy: str) -> None:
    semspec = {"strategy": strategy, "trace": True, **LOSSY[strategy]}
    lossy = (await thinking.chat(messages=MESSAGES, semspec=semspec)).json()
    exact = (await thinking.chat(messages=MESSAGES, semspec={**semspec, **EXACT})).json()
    assert "draft" in lossy["choices"][0]["message"]["content"]
    assert "draft" not in exact["choices"][0]["message"]["content"] and "target" in content(exact)
    assert content(exact).partition(THINK.closing)[0] == content(lossy).partition(THINK.closing)[0]
    assert exact["semspec"]["parameters"]["answer_strategy"] == "token-level"
    assert lossy["semspec"]["parameters"]["answer_strategy"] == ""
    assert [record["verdict"] for record in exact["semspec"]["trace"][4:]] == [
        "unjudged",
        "unjudged",
    ]
    assert any(record["num_proposed_tokens"] for record in exact["semspec"]["trace"][4:])


@pytest.mark.parametrize("strategy", ["target", "token-level", "retrieval"])
async def test_exact_strategy_is_left_as_it_is(thinking: Gateway, strategy: str) -> None:
    plain = (await thinking.chat(messages=MESSAGES, semspec={"strategy": strategy})).json()
    exact = (await thinking.chat(messages=MESSAGES, semspec={"strategy": strategy, **EXACT})).json()
    assert (
        content(exact) == content(plain) and exact["semspec"]["parameters"]["answer_strategy"] == ""
    )


async def test_text_without_reasoning_is_written_exactly(thinking: Gateway) -> None:
    exact = (await thinking.chat(semspec=EXACT, logprobs=True)).json()
    alone = (await thinking.chat(semspec={"strategy": "target"})).json()
    assert exact["choices"][0]["message"]["content"] == alone["choices"][0]["message"]["content"]
    assert (
        exact["semspec"]["strategy"] == "semantic" and exact["semspec"]["acceptance_rate"] is None
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": True},
        {"min_tokens": 3},
        {"semspec": {"strategy": "draft"}, "presence_penalty": 1},
    ],
)
async def test_target_alone_writes_what_token_level_speculation_cannot(
    thinking: Gateway, fields: Any
) -> None:
    fields = {**fields, "semspec": {**fields.get("semspec", {}), **EXACT}}
    answer = (await thinking.chat(messages=MESSAGES, **fields)).json()
    assert answer["semspec"]["parameters"]["answer_strategy"] == "target"
    if "logprobs" in fields:
        spelt = "".join(token["token"] for token in answer["choices"][0]["logprobs"]["content"])
        assert spelt == content(answer)


async def test_pair_of_two_vocabularies_answers_by_the_target_alone(
    start_gateway: GatewayFactory,
) -> None:
    fakes = thinkers().told(drafter={"tokenizer": "other"}, verifier={"draft_tokenizer": "other"})
    gateway = await start_gateway(fakes)
    answer = (await gateway.chat(messages=MESSAGES, semspec={"strategy": "draft", **EXACT})).json()
    assert answer["semspec"]["parameters"]["answer_strategy"] == "target"
    assert "draft" not in answer["choices"][0]["message"]["content"]


async def test_stream_and_choices_equal_whole_answers(thinking: Gateway) -> None:
    fields: dict[str, Any] = {"messages": MESSAGES, "semspec": EXACT, "n": 2}
    whole = (await thinking.chat(**fields)).json()
    streamed = await thinking.chat(stream=True, **fields)
    for index in range(2):
        assert told(streamed, index) == content(whole, index).replace(THINK.closing, "")
        assert "draft" not in whole["choices"][index]["message"]["content"]
    assert content(whole) != content(whole, 1)


async def test_every_route_takes_the_option(thinking: Gateway) -> None:
    chat = content((await thinking.chat(messages=MESSAGES, semspec=EXACT)).json())
    fields = {"model": "semspec-demo", "seed": 7, "semspec": EXACT}
    plain = await thinking.http.post("/v1/completions", json={**fields, "prompt": THINKING})
    response = await thinking.http.post("/v1/responses", json={**fields, "input": THINKING})
    tgi = await thinking.http.post(
        "/generate",
        json={"inputs": THINKING, "parameters": {"seed": 7, "do_sample": True}, "semspec": EXACT},
    )
    for answer in (plain, response, tgi):
        assert answer.status_code == 200, answer.text
    for said in (plain.json()["choices"][0]["text"], tgi.json()["generated_text"]):
        assert THINK.closing in said and "draft" not in said.partition(THINK.closing)[2]
    output = response.json()["output"]
    assert output[1]["content"][0]["text"] == chat.partition(THINK.closing)[2]


@pytest.mark.slow
@pytest.mark.parametrize("num_seen", [2, 4, 5])
async def test_interrupted_generation_goes_on_elsewhere_with_an_exact_answer(
    start_gateway: GatewayFactory, num_seen: int
) -> None:
    fields: dict[str, Any] = {
        "messages": MESSAGES,
        "semspec": {**EXACT, "strategy": "likelihood"},
        "logprobs": True,
    }
    undisturbed = await (await start_gateway(thinkers())).chat(stream=True, **fields)
    first, second = await start_gateway(thinkers()), await start_gateway(thinkers())
    first.fakes.drafter.pause_at = first.fakes.target.pause_at = num_seen
    seen = list[Any]()
    body = {"model": "semspec-demo", "seed": 7, "stream": True, **fields}
    async with (
        first.http.stream("POST", "/v1/chat/completions", json=body) as response,
        aclosing(response.aiter_lines()) as lines,  # type: ignore[type-var]
    ):
        async for line in lines:
            if line.startswith("data: {"):
                seen.append(json.loads(line.removeprefix("data: ")))
            if line == f"id: {num_seen}":
                break
    await first.status_becomes(seen[0]["id"], "interrupted")
    rest = await second.events(seen[0]["id"])
    assert told(rest) == told(undisturbed)
    stored = await second.stored(seen[0]["id"])
    assert stored["parameters"]["answer_strategy"] == "target"


async def test_speculation_beyond_its_limits_is_refused(thinking: Gateway) -> None:
    refusal = await thinking.chat(
        semspec={"strategy": "likelihood", "num_speculative_tokens": 40, **EXACT}
    )
    assert (
        "at most 16"
        in assert_error(refusal, 400, param="semspec.num_speculative_tokens")["message"]
    )


async def test_judged_strategy_with_an_exact_answer_takes_a_format(thinking: Gateway) -> None:
    semspec = {"strategy": "semantic", "trace": True, **EXACT}
    asked = {"messages": MESSAGES, "tools": [TOOL], "tool_choice": "required"}
    assert_error(
        await thinking.chat(**asked, semspec={"strategy": "semantic"}),
        400,
        param="semspec.strategy",
    )
    answer = (await thinking.chat(**asked, semspec=semspec)).json()
    assert answer["semspec"]["trace"][0]["writer"] == "draft" and all(
        thinking.fakes.target.grammars
    )
    assert answer["semspec"]["parameters"]["answer_strategy"] == "target"
    refusal = await thinking.chat(**asked, semspec={**semspec, "rewrite": "token-level"})
    assert_error(refusal, 400, param="semspec.strategy")


@pytest.fixture
async def spelling_thinker(tmp_path: Path, redis_url: str) -> AsyncIterator[Gateway]:
    """Over real engines of random weights, whose marks of reasoning are special tokens."""
    model = save_spelling_checkpoint(tmp_path / "model", sorted(THINK.marks), "<think>\n")
    async with (
        loaded(model, model) as engines,
        served(engines, tmp_path, redis_url=redis_url) as gateway,
    ):
        yield gateway


@pytest.mark.slow
async def test_call_of_a_tool_follows_reasoning_by_segments_on_real_engines(
    spelling_thinker: Gateway,
) -> None:
    semspec = {
        "strategy": "semantic",
        "acceptance": {"rule": "threshold", "threshold": 0},
        "trace": True,
        **EXACT,
    }
    fields: dict[str, Any] = {"temperature": 1, "top_p": 1, "max_tokens": 900, "semspec": semspec}
    num_called = 0
    for seed in range(8):
        asked = {
            **fields,
            "tools": [TOOL],
            "tool_choice": "required",
            "parallel_tool_calls": False,
            "seed": seed,
        }
        answer = (await spelling_thinker.chat(**asked)).json()
        assert answer["semspec"]["fallback"] is None
        [choice], trace = answer["choices"], answer["semspec"]["trace"]
        assert trace[0]["writer"] == "draft"
        if choice["finish_reason"] == "tool_calls":
            [call] = choice["message"]["tool_calls"]
            assert json.loads(call["function"]["arguments"])["number"] in (1, 22)
            cut = next(
                index for index, record in enumerate(trace) if THINK.closing in record["text"]
            )
            assert trace[cut]["text"].endswith(THINK.closing) or trace[cut]["writer"] == "target"
            assert {record["writer"] for record in trace[cut + 1 :]} == {"target"}
            num_called += 1
            streamed = chunks(await spelling_thinker.chat(stream=True, **asked))
            deltas = [choice["delta"] for chunk in streamed for choice in chunk["choices"]]
            [streamed_call] = [call for one in deltas for call in one.get("tool_calls") or ()]
            assert streamed_call["function"] == call["function"]
    assert num_called
