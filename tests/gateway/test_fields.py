"""Fields of a request that shape an answer: stop, logprobs, reasoning, sampling, penalties, strictness."""

from typing import Any

import pytest

from semspec.types import OperatingPoint, Penalties
from tests.helpers.gateway import (
    MESSAGES,
    Gateway,
    GatewayFactory,
    assert_error,
    extra,
    stream_chat,
    text_of,
)
from tests.helpers.gateway_fakes import NUM_SEGMENTS, Fakes


@pytest.mark.parametrize("stop", ["3 says", ["nowhere", "3 says"], "\n\ntarget 3 s"])
async def test_stop_ends_answers_alike_whole_and_streamed(gateway: Gateway, stop: Any) -> None:
    fields: Any = {"model": "semspec-demo:target", "seed": 7}
    full = await gateway.openai.chat.completions.create(messages=MESSAGES, **fields)
    text = full.choices[0].message.content or ""
    expected = text[: text.index(stop if isinstance(stop, str) else stop[1])]
    whole = await gateway.openai.chat.completions.create(messages=MESSAGES, stop=stop, **fields)
    assert whole.choices[0].message.content == expected and whole.choices[0].finish_reason == "stop"
    chunks = await stream_chat(gateway, stop=stop, **fields)
    assert text_of(chunks) == expected and chunks[-1].choices[0].finish_reason == "stop"
    assert extra(whole)["num_segments"] < NUM_SEGMENTS, "what nobody will see is not written"
    assert extra(whole)["parameters"]["stop"] == ([stop] if isinstance(stop, str) else stop)


async def test_stop_ends_each_choice_by_itself(gateway: Gateway) -> None:
    answer = await gateway.openai.chat.completions.create(
        model="semspec-demo:target", messages=MESSAGES, n=3, stop="target 2", seed=7
    )
    assert all((choice.message.content or "").count("\n\n") == 2 for choice in answer.choices)


async def test_logprobs_are_the_writers(gateway: Gateway) -> None:
    answer = await gateway.openai.chat.completions.create(
        model="semspec-demo", messages=MESSAGES, seed=7, logprobs=True, top_logprobs=2
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert "".join(token.token for token in logprobs.content) == answer.choices[0].message.content
    assert all(token.logprob == -0.5 and len(token.top_logprobs) == 2 for token in logprobs.content)
    assert bytes(logprobs.content[0].bytes or ()) == b"d"
    streamed = [
        choice.logprobs
        for chunk in await stream_chat(gateway, logprobs=True)
        for choice in chunk.choices
    ]
    assert [token.token for one in streamed if one for token in one.content or ()] == [
        token.token for token in logprobs.content
    ]


async def test_logprobs_of_a_plain_completion(gateway: Gateway) -> None:
    fields: dict[str, Any] = {
        "model": "semspec-demo:target",
        "prompt": "Once",
        "logprobs": 1,
        "seed": 3,
    }
    whole = (await gateway.openai.completions.create(**fields)).choices[0]
    assert whole.logprobs is not None and whole.logprobs.text_offset is not None
    assert "".join(whole.logprobs.tokens or ()) == whole.text
    assert whole.logprobs.text_offset == list(range(len(whole.text)))
    stream = await gateway.openai.completions.create(**fields, stream=True)
    offsets = [
        o
        for c in [c async for c in stream]
        for x in c.choices
        if x.logprobs
        for o in x.logprobs.text_offset
    ]
    assert offsets == whole.logprobs.text_offset


async def test_reasoning_is_apart(thinker: Gateway) -> None:
    messages: Any = [{"role": "user", "content": "How many?<think>\n"}]
    fields: dict[str, Any] = {"model": "semspec-demo:target", "messages": messages, "seed": 7}
    message = (await thinker.openai.chat.completions.create(**fields)).choices[0].message
    reasoning = (message.model_extra or {})["reasoning_content"]
    assert reasoning == (message.model_extra or {})["reasoning"] and reasoning.endswith("target 3")
    assert (
        message.content
        and message.content.startswith(" says")
        and "</think>" not in message.content + reasoning
    )
    chunks = await stream_chat(thinker, **fields)
    assert text_of(chunks) == message.content
    deltas = [
        choice.delta for chunk in chunks for choice in chunk.choices if choice.delta.model_extra
    ]
    assert "".join((delta.model_extra or {})["reasoning"] or "" for delta in deltas) == reasoning
    assert len(chunks) > NUM_SEGMENTS + 2, "text arrives before its segment has ended"
    handed_back = [*messages, message.model_dump(), {"role": "user", "content": "Sure?"}]
    assert (await thinker.chat(messages=handed_back)).status_code == 200
    assert reasoning not in thinker.fakes.target.prompts[-1]
    cut = (await thinker.openai.chat.completions.create(**fields, max_tokens=10)).choices[0].message
    assert cut.content is None and (cut.model_extra or {})["reasoning"] == reasoning[:10]


@pytest.mark.parametrize("stop", [["\n\n"], ["target", "\n\n"], ["says", "\n\n"]])
async def test_stop_belongs_to_the_answer(thinker: Gateway, stop: list[str]) -> None:
    """Harnesses send stop sequences with each request, and the reasoning holds most of them."""
    messages: Any = [{"role": "user", "content": "How many?<think>\n"}]
    fields: dict[str, Any] = {"model": "semspec-demo:target", "messages": messages, "seed": 7}
    plain = (await thinker.chat(**fields)).json()["choices"][0]["message"]
    whole = (await thinker.chat(**fields, stop=stop)).json()["choices"][0]
    end = min(plain["content"].index(sequence) for sequence in stop if sequence in plain["content"])
    assert whole["message"]["reasoning"] == plain["reasoning"] and "\n\n" in plain["reasoning"]
    assert (
        whole["message"]["content"] == plain["content"][:end] and whole["finish_reason"] == "stop"
    )
    assert text_of(await stream_chat(thinker, **fields, stop=stop)) == plain["content"][:end]


async def test_top_k_reaches_the_models(gateway: Gateway) -> None:
    for top_k, told in ((5, 5), (-1, 0), (None, 0)):
        assert (await gateway.chat(top_k=top_k)).json()["semspec"]["parameters"]["top_k"] == told


async def test_strictness_becomes_a_rule_and_what_to_expect(start_gateway: GatewayFactory) -> None:
    points = (OperatingPoint(0.1, 0.9, 0.99, 0.05, 3.0), OperatingPoint(0.9, 0.5, 0.6, 0.01, 1.5))
    gateway = await start_gateway(Fakes.make().told(verifier={"operating_points": points}))
    for strictness, point in ((0, points[0]), (1, points[1])):
        answer = (await gateway.chat(semspec={"strictness": strictness})).json()["semspec"]
        assert answer["parameters"]["strictness"] == strictness
        assert answer["parameters"]["acceptance"]["threshold"] == point.threshold
        assert answer["expected"]["acceptance"] == pytest.approx(point.acceptance)
        assert answer["expected"]["speed_up"] == pytest.approx(point.speed_up)
    assert (await gateway.chat()).json()["semspec"]["expected"] is None


PENALTIES: dict[str, Any] = {
    "presence_penalty": 0.5, "frequency_penalty": -1, "repetition_penalty": 1.2, "logit_bias": {"7": -100, "40": 2.5},
}  # fmt: skip


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_penalties_reach_the_one_writer(gateway: Gateway, path: str) -> None:
    text: dict[str, Any] = (
        {"prompt": "How many?"} if path == "/v1/completions" else {"messages": MESSAGES}
    )
    answer = (await gateway.http.post(path, json={**text, **PENALTIES})).json()
    assert answer["semspec"]["strategy"] == "target"
    told = {name: answer["semspec"]["parameters"][name] for name in PENALTIES}
    assert told == PENALTIES
    asked = Penalties(0.5, -1, 1.2, ((7, -100), (40, 2.5)))
    assert {one.penalties for one in gateway.fakes.target.asked} == {
        asked
    } and not gateway.fakes.drafter.asked
    await gateway.http.post(path, json={**text, **PENALTIES, "semspec": {"strategy": "draft"}})
    assert {one.penalties for one in gateway.fakes.drafter.asked} == {asked}


@pytest.mark.parametrize("name", PENALTIES)
async def test_penalties_are_refused_where_they_are_not_exact(
    start_gateway: GatewayFactory, name: str
) -> None:
    fakes = Fakes.make()
    gateway, given = await start_gateway(fakes), {name: PENALTIES[name]}
    for strategy in ("semantic", "token-level"):
        refused = await gateway.chat(**given, semspec={"strategy": strategy})
        error = assert_error(refused, 400, param="semspec.strategy")
        assert error["message"].endswith(f"leave out {name}, or choose 'target'")
    gateway = await start_gateway(fakes.told(target={"supports_penalties": False}))
    assert (
        "does not support penalties"
        in assert_error(await gateway.chat(**given), 400, param=name)["message"]
    )


@pytest.mark.parametrize(("fields", "least"), [({"min_tokens": 9}, 9), ({"ignore_eos": True}, 64)])
async def test_end_is_put_off_for_both_models(
    start_gateway: GatewayFactory, fields: Any, least: int
) -> None:
    fakes = Fakes.make()
    gateway = await start_gateway(fakes)
    answer = (await gateway.chat(**fields, max_tokens=64, semspec={"strategy": "semantic"})).json()
    assert answer["semspec"]["parameters"]["min_tokens"] == least
    assert fakes.drafter.asked[0].min_tokens >= least
    for other in (
        {"semspec": {"strategy": "token-level"}},
        {"response_format": {"type": "json_object"}},
    ):
        refused = assert_error(await gateway.chat(**fields, **other), 400, param="min_tokens")
        assert "leave them out" in refused["message"]


async def test_bias_on_tokens_of_another_model_is_refused(start_gateway: GatewayFactory) -> None:
    fakes = Fakes.make().told(
        drafter={"tokenizer": "another.tokenizer"}, verifier={"draft_tokenizer": ""}
    )
    gateway = await start_gateway(fakes)
    refused = await gateway.chat(logit_bias={"7": 1}, semspec={"strategy": "draft"})
    assert "different token ids" in assert_error(refused, 400, param="logit_bias")["message"]


async def test_least_values_are_served(gateway: Gateway) -> None:
    fields = {"repetition_penalty": 0.01, "temperature": 1e-6, "top_p": 1e-6}
    assert (await gateway.chat(**fields)).status_code == 200
    assert (await gateway.chat(temperature=-0.0)).status_code == 200


async def test_min_p_reaches_both_writers_or_is_refused(start_gateway: GatewayFactory) -> None:
    gateway = await start_gateway()
    answer = (await gateway.chat(min_p=0.1)).json()
    assert answer["semspec"]["parameters"]["min_p"] == 0.1
    fakes = gateway.fakes
    assert {one.sampling.min_p for one in (*fakes.drafter.asked, *fakes.target.asked)} == {0.1}
    gateway = await start_gateway(Fakes.make().told(drafter={"supports_min_p": False}))
    assert_error(await gateway.chat(min_p=0.1), 400, param="min_p")
    assert (await gateway.chat(min_p=0.1, semspec={"strategy": "target"})).status_code == 200
    assert (await gateway.chat(min_p=0)).status_code == 200
