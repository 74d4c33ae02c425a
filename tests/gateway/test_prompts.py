"""Prompts beside one text: several at once, token ids, and messages of tools and developers."""

from typing import Any

import pytest
from redis.asyncio import Redis

from tests.gateway.support import Gateway

CALL = {"id": "call-1", "type": "function", "function": {"name": "count", "arguments": '{"of": "pens"}'}}


async def completed(gateway: Gateway, prompt: Any, **fields: Any) -> Any:
    body = {"prompt": prompt, "seed": 7, "model": "semspec-demo:target", **fields}
    response = await gateway.http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("n", [1, 2])
async def test_each_of_several_prompts_gets_the_choices_it_has_alone(gateway: Gateway, n: int) -> None:
    alone = [await completed(gateway, prompt, n=n) for prompt in ("Once", "Twice upon")]
    both = await completed(gateway, ["Once", "Twice upon"], n=n)
    assert [choice["index"] for choice in both["choices"]] == list(range(2 * n))
    assert [c["text"] for c in both["choices"]] == [c["text"] for answer in alone for c in answer["choices"]]
    for name in ("prompt_tokens", "completion_tokens"):
        assert both["usage"][name] == sum(answer["usage"][name] for answer in alone)
    assert set(gateway.fakes.target.read) == {"Once", "Twice upon"}


async def test_choices_of_several_prompts_stream_and_are_attached_to(gateway: Gateway) -> None:
    whole = await completed(gateway, ["Once", "Twice"])
    stream = await gateway.openai.completions.create(
        model="semspec-demo:target", prompt=["Once", "Twice"], seed=7, stream=True
    )
    texts = ["", ""]
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice["text"] for choice in whole["choices"]]
    events = (await gateway.events(whole["id"])).text
    assert events.endswith("data: [DONE]\n\n") and '"prompt_tokens":9' in events


async def test_choice_that_had_not_begun_gets_its_own_prompt(gateway: Gateway, redis: Redis) -> None:
    whole = await completed(gateway, ["Once", "Twice"])
    await redis.delete(*(await redis.keys(f"*{whole['id']}-1*")))
    gateway.fakes.target.read.clear()
    await gateway.events(whole["id"])
    assert gateway.fakes.target.read == ["Twice"]


@pytest.mark.parametrize("strategy", ["target", "semantic"])
async def test_token_ids_are_a_prompt(gateway: Gateway, strategy: str) -> None:
    model = f"semspec-demo:{strategy}"
    text = await completed(gateway, "Once", model=model)
    for ids in ([*b"Once"], [[*b"Once"]]):
        answer = await completed(gateway, ids, model=model)
        assert answer["choices"] == text["choices"] and answer["usage"] == text["usage"]
    mixed = await completed(gateway, [[*b"Once"], [*b"Twice"]], model=model)
    assert mixed["choices"][0] == text["choices"][0] and mixed["choices"][1]["text"]
    stored = await gateway.stored(answer["id"])
    assert stored["prompt"]["text"] == "Once"


async def test_turns_of_tools_and_developers_reach_the_template(gateway: Gateway) -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "How many?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call-1", "content": [{"type": "text", "text": part} for part in "25"]},
    ]
    answer = await gateway.chat(messages=messages)
    assert answer.status_code == 200, answer.text
    prompt = gateway.fakes.target.prompts[-1]
    assert prompt.startswith("<developer>Be brief.<user>How many?<assistant>[{") and prompt.endswith("<tool>25")
    assert '"name": "count"' in prompt
