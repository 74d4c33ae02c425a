"""Prompts other than one text: several at once, token ids, and the histories that clients send back."""

import json
from functools import reduce
from typing import Any

import pytest
from pydantic import ValidationError
from redis.asyncio import Redis

from semspec.errors import ContextTooLong
from semspec_gateway.api.openai.requests import FunctionCall
from tests.helpers.gateway import Gateway, GatewayFactory, assert_error
from tests.helpers.gateway_fakes import Fakes

CALL: dict[str, Any] = {
    "id": "call-1",
    "type": "function",
    "function": {"name": "count", "arguments": '{"of": "pens"}'},
}


async def completed(gateway: Gateway, prompt: Any, **fields: Any) -> Any:
    body = {"prompt": prompt, "seed": 7, "model": "semspec-demo:target", **fields}
    response = await gateway.http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("n", [1, 2])
async def test_each_of_several_prompts_gets_the_choices_it_has_alone(
    gateway: Gateway, n: int
) -> None:
    alone = [await completed(gateway, prompt, n=n) for prompt in ("Once", "Twice upon")]
    both = await completed(gateway, ["Once", "Twice upon"], n=n)
    assert [choice["index"] for choice in both["choices"]] == list(range(2 * n))
    assert [c["text"] for c in both["choices"]] == [
        c["text"] for answer in alone for c in answer["choices"]
    ]
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


async def test_choice_that_had_not_begun_gets_its_own_prompt(
    gateway: Gateway, redis: Redis
) -> None:
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


ASKED, AGAIN = {"role": "user", "content": "How many?"}, {"role": "user", "content": "Sure?"}
ANSWERS: dict[str, Any] = {
    "null": {"content": None},
    "without content": {},
    "as it was answered": {
        **{
            "content": None,
            "reasoning_content": "Hm",
            "reasoning": "Hm",
            "tool_calls": None,
            "refusal": None,
        },
        **{"annotations": [], "audio": None, "function_call": None},
    },
    "of LiteLLM": {
        **{
            "content": None,
            "provider_specific_fields": {"refusal": None},
            "thinking_blocks": [{"thinking": "Hm"}],
        },
        **{"images": [], "reasoning_content": "Hm"},
    },
}
"""Assistants' messages without a text."""


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
async def test_answer_without_content_is_an_empty_text(
    gateway: Gateway, answer: dict[str, Any]
) -> None:
    response = await gateway.chat(messages=[ASKED, {"role": "assistant", **answer}, AGAIN])
    assert response.status_code == 200, response.text
    assert gateway.fakes.target.prompts[-1] == "<user>How many?<assistant><user>Sure?"


def make_calls(*calls: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    """Return a history in which an assistant made these calls."""
    return [
        ASKED,
        {"role": "assistant", **({"tool_calls": list(calls)} if calls else {}), **fields},
    ]


def make_call_with(arguments: Any) -> list[dict[str, Any]]:
    return make_calls({**CALL, "function": {"name": "count", "arguments": arguments}})


TOOLS_TURN = {"role": "tool", "tool_call_id": "call-1", "content": "25"}
SHOWN = json.dumps([CALL])
EARLIER = {"role": "user", "content": "How many?", "name": "Ann"}
CACHED = {"cache_control": {"type": "ephemeral"}}
HISTORIES: dict[str, tuple[list[dict[str, Any]], str]] = {
    "name of a tool": ([ASKED, {**TOOLS_TURN, "name": "count"}], "<user>How many?<tool count call-1>25"),
    "developer": ([{"role": "developer", "content": "Be brief."}, ASKED], "<developer>Be brief.<user>How many?"),
    "names of participants": (
        [{"role": "system", "content": "Brief.", "name": "rules"}, EARLIER, {**EARLIER, "role": "assistant"}, AGAIN],
        "<system rules>Brief.<user Ann>How many?<assistant Ann>How many?<user>Sure?",
    ),
    "call as a stream has it": (
        [*make_calls({**CALL, "index": 0}), TOOLS_TURN], f"<user>How many?<assistant>{SHOWN}<tool call-1>25"
    ),
    "call without id and type": (
        [*make_calls({"id": None, "function": CALL["function"]}), {"role": "tool", "content": "25"}],
        f"<user>How many?<assistant>{json.dumps([{'type': 'function', 'function': CALL['function']}])}<tool>25",
    ),
    "arguments as an object": (
        [*make_call_with({"of": "pens"}), TOOLS_TURN], f"<user>How many?<assistant>{SHOWN}<tool call-1>25"
    ),
    "empty arguments": ([*make_call_with(""), AGAIN], '"arguments": "{}"}}]<user>Sure?'),
    
    "arguments that are no JSON": ([*make_call_with("{of"), AGAIN], '"arguments": "{of"}}]<user>Sure?'),
    "parsed arguments": (
        [*make_calls({**CALL, "function": {**CALL["function"], "parsed_arguments": {}}}, parsed={}), AGAIN],
        f"{SHOWN}<user>Sure?",
    ),
    
    "older format of calls": (
        [*make_calls(function_call=CALL["function"]), {"role": "function", "name": "count", "content": "25"}],
        f"<user>How many?<assistant>{json.dumps([{**CALL, 'id': 'count'}])}<tool count count>25",
    ),
    "function without a result": (
        [*make_calls(function_call=CALL["function"]), {"role": "function", "name": "count", "content": None}, AGAIN],
        "<tool count count><user>Sure?",
    ),
    "refusal": ([ASKED, {"role": "assistant", "content": None, "refusal": "No."}, AGAIN], "<assistant>No.<user>Sure?"),
    "refusal as a part": (
        [ASKED, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, AGAIN],
        "<assistant>No.<user>Sure?",
    ),
    "marks for a cache": (
        [{"role": "system", "content": [{"type": "text", "text": "Brief.", **CACHED}]}, {**ASKED, **CACHED}],
        "<system>Brief.<user>How many?",
    ),
    
}  # fmt: skip
"""Histories of agents, and the end of the prompt that they become."""


@pytest.mark.parametrize(("messages", "end"), HISTORIES.values(), ids=HISTORIES)
async def test_history_of_an_agent_reaches_the_template(
    gateway: Gateway, messages: list[dict[str, Any]], end: str
) -> None:
    for path in ("/v1/chat/completions", "/tokenize"):
        answer = await gateway.http.post(path, json={"model": "semspec-demo", "messages": messages})
        assert answer.status_code == 200, answer.text
        assert gateway.fakes.target.prompts[-1].endswith(end)


def test_arguments_that_are_nested_too_deep_are_refused() -> None:
    deep: dict[str, Any] = reduce(lambda inner, _: {"a": inner}, range(5000), {})
    with pytest.raises(ValidationError, match="nested too deep"):
        FunctionCall(name="count", arguments=deep)  # type: ignore[arg-type]


async def test_name_is_kept_with_the_turns_of_a_session(gateway: Gateway, session: str) -> None:
    await gateway.chat(messages=[EARLIER], semspec={"session": session})
    await gateway.chat(messages=[AGAIN], semspec={"session": session})
    assert gateway.fakes.target.prompts[-1].startswith("<user Ann>How many?<assistant>")


@pytest.mark.parametrize(
    "template", ["", "own "], ids=["reads the target's prompt", "renders its own"]
)
@pytest.mark.parametrize("num_tokens", [800, 1100], ids=["with the answer", "alone"])
async def test_prompt_too_long_for_the_draft_alone_names_the_strategy_that_takes_it(
    start_gateway: GatewayFactory, template: str, num_tokens: int
) -> None:
    fakes = Fakes.make().told(drafter={"max_context_tokens": 1000, "chat_template": template})
    fakes.drafter.refusal = (
        ContextTooLong("too long for 1000") if template and num_tokens > 1000 else None
    )
    gateway = await start_gateway(fakes)
    asked: dict[str, Any] = {
        "messages": [{"role": "user", "content": "x" * num_tokens}],
        "max_tokens": 300,
    }
    message = assert_error(await gateway.chat(**asked), 400)["message"]
    assert "1000" in message and message.endswith("or choose 'target', whose window has 2000")
    assert (await gateway.chat(**asked, semspec={"strategy": "target"})).status_code == 200
    asked["messages"][0]["content"] = "x" * 2000
    fakes.drafter.refusal = None
    assert "1000" not in assert_error(await gateway.chat(**asked), 400)["message"]
