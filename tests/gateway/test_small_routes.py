"""Routes that clients of vLLM, TGI and OpenAI expect beside those that generate; token counts of the reasoning."""

from typing import Any

import openai
import pytest

from tests.helpers.gateway import Gateway, assert_error
from tests.helpers.gateway_fakes import WINDOW


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"prompt": "Once"}, "Once"),
        ({"prompt": "Once", "model": "semspec-demo", "add_special_tokens": False}, "Once"),
        ({"prompt": "", "add_special_tokens": None}, ""),
        (
            {"messages": [{"role": "user", "content": "How?"}], "add_generation_prompt": True},
            "<user>How?",
        ),
    ],
    ids=str,
)
async def test_tokens_of_a_prompt_as_in_vllm(
    gateway: Gateway, body: dict[str, Any], text: str
) -> None:
    answer = await gateway.http.post("/tokenize", json=body)
    expected = {
        "count": len(text),
        "max_model_len": WINDOW,
        "tokens": [*map(ord, text)],
        "token_strs": None,
    }
    assert answer.status_code == 200 and answer.json() == expected
    if text:
        back = await gateway.http.post("/detokenize", json={"tokens": expected["tokens"]})
        assert back.status_code == 200 and back.json() == {"prompt": text}


@pytest.mark.parametrize(
    ("path", "body"), [("/tokenize", {"prompt": "Once"}), ("/detokenize", {"tokens": [7]})]
)
async def test_tokens_of_another_model_are_not_found(
    gateway: Gateway, path: str, body: dict[str, Any]
) -> None:
    answer = await gateway.http.post(path, json={**body, "model": "another"})
    assert answer.status_code == 404 and "another" in answer.text


async def test_embeddings_are_refused_in_openais_shape(gateway: Gateway) -> None:
    with pytest.raises(openai.BadRequestError, match="embeddings are not supported") as refused:
        await gateway.openai.embeddings.create(model="semspec-demo", input="Once")
    assert refused.value.code == "invalid_value"


async def test_usage_counts_the_reasoning_of_all_choices(thinker: Gateway) -> None:
    thinking: Any = [{"role": "user", "content": "How many?<think>\n"}]
    answer = (
        await thinker.chat(model="semspec-demo:target", messages=thinking, semspec={"trace": True})
    ).json()
    usage, trace = answer["usage"], answer["semspec"]["trace"]
    [last] = [record for record in trace if "</think>" in record["text"]]
    before = last["num_tokens"] * last["text"].index("</think>") // len(last["text"])
    counted = sum(record["num_tokens"] for record in trace[: last["index"]]) + before
    assert 0 < before < last["num_tokens"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": counted}
    assert "prompt_tokens_details" not in usage
    assert counted < usage["completion_tokens"]
    two = (await thinker.chat(model="semspec-demo:target", messages=thinking, n=2)).json()["usage"]
    assert two["completion_tokens_details"]["reasoning_tokens"] > counted
    cut = (
        await thinker.chat(model="semspec-demo:target", messages=thinking, max_tokens=10)
    ).json()["usage"]
    assert cut["completion_tokens_details"]["reasoning_tokens"] == cut["completion_tokens"] == 10
    assert (await thinker.stored(answer["id"]))["usage"] == usage


@pytest.mark.parametrize("model", ["semspec-demo:target", "semspec-demo"])
async def test_reasoning_ends_with_the_segment_that_reaches_its_budget(
    thinker: Gateway, model: str
) -> None:
    fields: Any = {"model": model, "messages": [{"role": "user", "content": "How many?<think>\n"}]}
    fields |= {"semspec": {"trace": True}}
    free = (await thinker.chat(**fields)).json()["semspec"]["trace"]
    budget = free[0]["num_tokens"] + 1
    answer = (await thinker.chat(**fields, thinking_token_budget=budget)).json()
    trace, usage = answer["semspec"]["trace"], answer["usage"]["completion_tokens_details"]
    assert [one["text"] for one in trace[:2]] == [one["text"] for one in free[:2]]
    assert trace[2]["text"].strip() == "</think>"
    assert trace[2]["writer"] == "target"
    assert len(trace) > 3
    assert usage == {"reasoning_tokens": sum(one["num_tokens"] for one in trace[:2])}
    message = answer["choices"][0]["message"]
    assert message["reasoning_content"].strip() == "".join(one["text"] for one in trace[:2]).strip()
    none = (await thinker.chat(**fields, reasoning_effort="none")).json()
    assert none["semspec"]["trace"][0]["text"] == "</think>\n\n"
    assert not none["choices"][0]["message"]["reasoning"]
    assert_error(
        await thinker.chat(**fields, logprobs=True, thinking_token_budget=1),
        400,
        param="thinking_token_budget",
    )
