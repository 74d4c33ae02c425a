"""The option `exact_answer`: the answer behind the reasoning is the target's, on every route, streamed and resumed."""

import json
from contextlib import aclosing
from typing import Any

import pytest

from semspec.reasoning import THINK
from semspec.types import Writer
from tests.helpers.gateway import Gateway, GatewayFactory, assert_error, chunks
from tests.helpers.gateway_fakes import Fakes, Thinker

THINKING = "How many? <think>"
MESSAGES = [{"role": "user", "content": THINKING}]
EXACT: dict[str, Any] = {"exact_answer": True}
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


@pytest.mark.parametrize("strategy", ["target", "token-level", "retrieval"])
async def test_exact_strategy_is_left_as_it_is(thinking: Gateway, strategy: str) -> None:
    plain = (await thinking.chat(messages=MESSAGES, semspec={"strategy": strategy})).json()
    exact = (await thinking.chat(messages=MESSAGES, semspec={"strategy": strategy, **EXACT})).json()
    assert content(exact) == content(plain)
    assert exact["semspec"]["parameters"]["answer_strategy"] == ""


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
    assert answer["semspec"]["trace"][0]["writer"] == "draft"
    assert all(thinking.fakes.target.grammars)
    assert answer["semspec"]["parameters"]["answer_strategy"] == "target"
    refusal = await thinking.chat(**asked, semspec={**semspec, "rewrite": "token-level"})
    assert_error(refusal, 400, param="semspec.strategy")
