"""Fields that shape an answer: stop, reasoning, sampling, penalties, strictness; and those without effect."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semspec.errors import InvalidRequest
from semspec.types import OperatingPoint, Penalties
from semspec_gateway.api.shared.requests import OPENAI_DEFAULTS, TGI_DEFAULTS
from semspec_gateway.generation.request import Expected, at_strictness
from tests.helpers.gateway import (
    MESSAGES,
    Gateway,
    GatewayFactory,
    content,
    stream_chat,
    text_of,
)
from tests.helpers.gateway_fakes import NUM_SEGMENTS, Fakes

THINKING: dict[str, Any] = {
    "model": "semspec-demo:target",
    "messages": [{"role": "user", "content": "How many?<think>\n"}],
    "seed": 7,
}


@pytest.mark.parametrize("stop", ["3 says", ["nowhere", "3 says"], "\n\ntarget 3 s"])
async def test_stop_ends_answers_alike_whole_and_streamed(gateway: Gateway, stop: Any) -> None:
    fields: Any = {"model": "semspec-demo:target", "seed": 7}
    text = content(await gateway.chat(**fields))
    whole = await gateway.answer(**fields, stop=stop)
    [choice] = whole["choices"]
    assert choice["message"]["content"] == text[: text.index(stop if "3" in stop else "3 says")]
    assert choice["finish_reason"] == "stop"
    chunks = await stream_chat(gateway, stop=stop, **fields)
    assert text_of(chunks) == choice["message"]["content"]
    assert chunks[-1].choices[0].finish_reason == "stop"
    own = whole["semspec"]
    assert own["num_segments"] < NUM_SEGMENTS, "segments after the stop sequence are not written"
    assert own["parameters"]["stop"] == ([stop] if isinstance(stop, str) else stop)


async def test_reasoning_is_apart(thinker: Gateway) -> None:
    message = (await thinker.answer(**THINKING))["choices"][0]["message"]
    reasoning, answer = message["reasoning_content"], message["content"]
    assert reasoning == message["reasoning"] and reasoning.endswith("target 3")
    assert answer.startswith(" says") and "</think>" not in answer + reasoning
    chunks = await stream_chat(thinker, **THINKING)
    deltas = [choice.delta.model_extra or {} for chunk in chunks for choice in chunk.choices]
    assert text_of(chunks) == answer
    assert "".join(delta.get("reasoning") or "" for delta in deltas) == reasoning
    assert len(chunks) > NUM_SEGMENTS + 2, "text arrives before its segment has ended"
    again = {"role": "user", "content": "Sure?"}
    await thinker.answer(messages=[*THINKING["messages"], message, again])
    assert reasoning not in thinker.fakes.target.prompts[-1]
    cut = (await thinker.answer(**THINKING, max_tokens=10))["choices"][0]["message"]
    assert (cut["content"], cut["reasoning"]) == (None, reasoning[:10])


@pytest.mark.parametrize("stop", [["\n\n"], ["target", "\n\n"], ["says", "\n\n"]])
async def test_stop_belongs_to_the_answer(thinker: Gateway, stop: list[str]) -> None:
    """Harnesses send stop sequences with each request, and the reasoning holds most of them."""
    plain = (await thinker.answer(**THINKING))["choices"][0]["message"]
    [whole] = (await thinker.answer(**THINKING, stop=stop))["choices"]
    end = min(plain["content"].index(one) for one in stop if one in plain["content"])
    assert whole["message"]["reasoning"] == plain["reasoning"] and "\n\n" in plain["reasoning"]
    assert whole["message"]["content"] == plain["content"][:end]
    assert whole["finish_reason"] == "stop"
    assert text_of(await stream_chat(thinker, **THINKING, stop=stop)) == plain["content"][:end]


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
    assert {one.penalties for one in gateway.fakes.target.asked} == {asked}
    assert not gateway.fakes.drafter.asked
    await gateway.http.post(path, json={**text, **PENALTIES, "semspec": {"strategy": "draft"}})
    assert {one.penalties for one in gateway.fakes.drafter.asked} == {asked}


@pytest.mark.parametrize("name", PENALTIES)
async def test_penalties_are_refused_where_they_are_not_exact(
    start_gateway: GatewayFactory, name: str
) -> None:
    fakes = Fakes.make()
    gateway, given = await start_gateway(fakes), {name: PENALTIES[name]}
    remedy = f"leave out {name}, or choose 'target'"
    for strategy in ("semantic", "token-level"):
        await gateway.refuse("semspec.strategy", remedy, **given, semspec={"strategy": strategy})
    gateway = await start_gateway(fakes.told(target={"supports_penalties": False}))
    await gateway.refuse(name, "does not support penalties", **given)


@pytest.mark.parametrize(("fields", "least"), [({"min_tokens": 9}, 9), ({"ignore_eos": True}, 64)])
async def test_end_is_put_off_for_both_models(gateway: Gateway, fields: Any, least: int) -> None:
    answer = await gateway.answer(**fields, max_tokens=64, semspec={"strategy": "semantic"})
    assert answer["semspec"]["parameters"]["min_tokens"] == least
    assert gateway.fakes.drafter.asked[0].min_tokens >= least
    remedy, json = "leave them out", {"response_format": {"type": "json_object"}}
    for other in ({"semspec": {"strategy": "token-level"}}, json):
        await gateway.refuse("min_tokens", remedy, **fields, **other)


async def test_bias_on_tokens_of_another_model_is_refused(start_gateway: GatewayFactory) -> None:
    other = {"tokenizer": "another.tokenizer"}
    fakes = Fakes.make().told(drafter=other, verifier={"draft_tokenizer": ""})
    asked: Any = {"logit_bias": {"7": 1}, "semspec": {"strategy": "draft"}}
    await (await start_gateway(fakes)).refuse("logit_bias", "different token ids", **asked)


async def test_filters_reach_both_writers_or_are_refused(start_gateway: GatewayFactory) -> None:
    gateway = await start_gateway()
    for top_k, told in ((5, 5), (-1, 0), (None, 0)):
        assert (await gateway.answer(top_k=top_k))["semspec"]["parameters"]["top_k"] == told
    fakes = gateway.fakes
    fakes.drafter.asked.clear()
    fakes.target.asked.clear()
    assert (await gateway.answer(min_p=0.1))["semspec"]["parameters"]["min_p"] == 0.1
    assert {one.sampling.min_p for one in (*fakes.drafter.asked, *fakes.target.asked)} == {0.1}
    gateway = await start_gateway(Fakes.make().told(drafter={"supports_min_p": False}))
    await gateway.refuse("min_p", min_p=0.1)
    await gateway.answer(min_p=0.1, semspec={"strategy": "target"})
    await gateway.answer(min_p=0)


SAMPLE = OperatingPoint(None, 0.83, 0.9, 0.004, 2.6)
CURVE = (
    OperatingPoint(0.1, 0.9, 0.99, 0.08, 3.5),
    OperatingPoint(0.5, 0.8, 0.97, 0.02, 3.0),
    OperatingPoint(0.7, 0.4, 0.9, None, 1.5),
    SAMPLE,
)

fractions = st.floats(0, 1)


@st.composite
def curves(draw: st.DrawFn) -> list[OperatingPoint]:
    """Thresholds with what they accept, as a report has them: a higher one accepts no more; the rule `sample` last."""
    thresholds = sorted(draw(st.lists(st.floats(0, 30), min_size=1, max_size=8, unique=True)))
    accepted = sorted((draw(fractions) for _ in thresholds), reverse=True)
    wrong = sorted((draw(fractions) for _ in thresholds), reverse=True)
    curve = [
        OperatingPoint(t, a, None, w, 1 + a)
        for t, a, w in zip(thresholds, accepted, wrong, strict=True)
    ]
    return [*curve, SAMPLE]


@given(curves(), fractions, fractions)
def test_stricter_never_accepts_more(
    points: Sequence[OperatingPoint], one: float, other: float
) -> None:
    lenient, strict = (at_strictness(strictness, points) for strictness in sorted((one, other)))
    assert lenient.threshold <= strict.threshold
    assert lenient.expected.acceptance >= strict.expected.acceptance - 1e-9
    wrong = lenient.expected.wrong_accepted, strict.expected.wrong_accepted
    assert None not in wrong and wrong[0] >= wrong[1] - 1e-9  # type: ignore[operator]


@given(curves())
def test_ends_are_the_reports_own(points: Sequence[OperatingPoint]) -> None:
    for strictness, point in ((0.0, points[0]), (1.0, points[-2])):
        setting = at_strictness(strictness, points)
        assert setting.threshold == point.threshold
        assert setting.expected == Expected(point.acceptance, point.wrong_accepted, point.speed_up)


@given(curves(), fractions, st.randoms())
def test_order_of_the_points_does_not_matter(
    points: list[OperatingPoint], strictness: float, random: Random
) -> None:
    shuffled = list(points)
    random.shuffle(shuffled)
    assert at_strictness(strictness, shuffled) == at_strictness(strictness, points)


def test_between_two_points_all_is_linear() -> None:
    halfway = at_strictness(1 / 3, CURVE)
    assert halfway.threshold == pytest.approx(0.3)
    expected = halfway.expected
    assert (expected.acceptance, expected.wrong_accepted, expected.speed_up) == pytest.approx(
        (0.85, 0.05, 3.25)
    )


def test_unknown_stays_unknown() -> None:
    expected = at_strictness(0.9, CURVE).expected
    assert expected.wrong_accepted is None and expected.speed_up is not None
    assert at_strictness(1.0, CURVE).expected == Expected(0.4, None, 1.5)


@pytest.mark.parametrize("points", [(), (SAMPLE,)])
def test_report_without_a_curve_is_refused_by_name(points: Sequence[OperatingPoint]) -> None:
    with pytest.raises(InvalidRequest, match=r"no curve; use semspec\.acceptance") as caught:
        at_strictness(0.5, points)
    assert caught.value.parameter == "strictness"


ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "How many?"}]},
    "/v1/completions": {"prompt": "Once"},
}


@pytest.mark.parametrize("path", ROUTES)
async def test_values_without_effect_change_nothing(gateway: Gateway, path: str) -> None:
    body = {**ROUTES[path], "model": "semspec-demo", "seed": 7}
    plain = (await gateway.http.post(path, json=body)).json()
    neutral = {name: values[0] for name, values in OPENAI_DEFAULTS.items() if values}
    answer = await gateway.http.post(path, json={**body, **neutral})
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"] == plain["choices"]
    assert answer.json()["semspec"]["parameters"] == plain["semspec"]["parameters"]
    for name, value in (
        (name, value) for name, values in OPENAI_DEFAULTS.items() for value in values[1:]
    ):
        assert (await gateway.http.post(path, json={**body, name: value})).status_code == 200, name


@pytest.mark.parametrize("path", ROUTES)
async def test_null_selects_the_default_of_every_field(gateway: Gateway, path: str) -> None:
    document = gateway.app.openapi()
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ]["$ref"]
    fields = document["components"]["schemas"][schema.rpartition("/")[2]]["properties"]
    answer = await gateway.http.post(path, json={**dict.fromkeys(fields), **ROUTES[path]})
    assert answer.status_code == 200, answer.text
    options = dict.fromkeys(
        ("strategy", "acceptance", "retrieval", "trace", "session", "strictness", "gamma")
    )
    streamed = {"semspec": options, "stream": True, "stream_options": {"include_usage": None}}
    answer = await gateway.http.post(path, json={**ROUTES[path], **streamed})
    assert answer.status_code == 200 and answer.text.endswith("data: [DONE]\n\n"), answer.text


async def test_parameters_of_tgi_without_effect_change_nothing(gateway: Gateway) -> None:
    async def text(parameters: Any) -> str:
        answer = await gateway.http.post(
            "/generate", json={"inputs": "Once", "parameters": parameters, "semspec": None}
        )
        assert answer.status_code == 200, answer.text
        return str(answer.json()["generated_text"])

    neutral = {name: values[0] for name, values in TGI_DEFAULTS.items() if values}
    assert await text({"seed": 7, **neutral}) == await text({"seed": 7})
    nulls = dict.fromkeys(
        (*TGI_DEFAULTS, "do_sample", "stop", "temperature", "top_k", "top_p", "details")
    )
    assert await text({"seed": 7, **nulls}) == await text({"seed": 7})
    assert await text(None)


@pytest.mark.parametrize(
    "fields", [{}, {"model": None}, {"model": "tgi"}, {"model": "dummy"}], ids=str
)
@pytest.mark.parametrize("path", ROUTES)
async def test_request_that_names_no_model_gets_the_pair(
    gateway: Gateway, path: str, fields: dict[str, Any]
) -> None:
    answer = await gateway.http.post(path, json={**ROUTES[path], **fields})
    assert answer.status_code == 200 and answer.json()["model"] == "semspec-demo"
    assert answer.json()["semspec"]["strategy"] == "semantic"
