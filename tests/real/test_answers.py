"""What OpenAI's and TGI's APIs offer besides tools and formats, asked of the real pair."""

from typing import Any

import pytest

from semspec.engine.checkpoint import load_tokenizer
from tests.real.support import TARGET, RealPair, real_model

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="package")]

SUM = "What is 17 + 25? Answer with the number only."
MARKS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
SYSTEM = "You are Qwen, created by Alibaba Cloud."


async def test_answer_ends_at_the_end_of_the_turn_without_its_mark(real: RealPair) -> None:
    for strategy in ("target", "draft", "likelihood"):
        choice = await real.choice("Say hello.", semspec={"strategy": strategy})
        assert choice["finish_reason"] == "stop" and choice["message"]["content"].strip()
        assert not any(mark in choice["message"]["content"] for mark in MARKS)
        assert choice["message"]["reasoning"] is None


async def test_prompt_is_that_of_the_published_template(real: RealPair) -> None:
    tokenizer = load_tokenizer(str(real_model(TARGET)))
    for system in ("", "Answer in French."):
        turns = [{"role": "system", "content": system}] if system else []
        turns.append({"role": "user", "content": "Good morning."})
        expected = str(
            tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        )
        assert (SYSTEM in expected) is not bool(system)
        answer = await real.chat(turns, max_tokens=1)
        assert answer["usage"]["prompt_tokens"] == len(
            tokenizer.encode(expected, add_special_tokens=False)
        )


async def test_stop_ends_the_text_before_it(real: RealPair) -> None:
    choice = await real.choice("Count from 1 to 20, separated by spaces.", stop=["7"])
    assert choice["finish_reason"] == "stop" and choice["message"]["content"].endswith("6 ")


async def test_logprobs_name_the_tokens_of_the_answer(real: RealPair) -> None:
    choice = await real.choice(SUM, logprobs=True, top_logprobs=2, max_tokens=10)
    tokens = choice["logprobs"]["content"]
    assert "".join(token["token"] for token in tokens).startswith(choice["message"]["content"])
    assert all(token["logprob"] == token["top_logprobs"][0]["logprob"] <= 0 for token in tokens)
    assert all(len(token["top_logprobs"]) == 2 for token in tokens)


async def test_seed_repeats_each_of_several_choices(real: RealPair) -> None:
    fields: dict[str, Any] = {"n": 2, "seed": 3, "temperature": 1, "max_tokens": 12}
    question = "Invent a name of a town."
    answers = [await real.chat(question, **fields) for _ in range(2)]
    first, again = (
        [choice["message"]["content"] for choice in answer["choices"]] for answer in answers
    )
    assert first == again and len(set(first)) == 2


async def test_penalties_and_biases_change_what_is_written(real: RealPair) -> None:
    question = "Write the word 'no' ten times."
    plain = (await real.choice(question, max_tokens=24))["message"]["content"]
    penalised = (await real.choice(question, max_tokens=24, frequency_penalty=2.0))["message"][
        "content"
    ]
    assert plain.count(" no,") > penalised.count(" no,")
    [seven] = [token["id"] for token in await real.tokens("7")]
    biased = await real.choice(SUM, max_tokens=3, logit_bias={str(seven): 100})
    assert biased["message"]["content"] == "777"


async def test_every_api_gives_the_same_text(real: RealPair) -> None:
    """Chat, its stream, a response, a plain completion of the rendered prompt, and TGI's route."""
    chat = await real.chat(SUM)
    text = chat["choices"][0]["message"]["content"]
    assert "42" in text
    parts = await real.chunks(SUM)
    assert "".join(part["delta"].get("content") or "" for part in parts) == text
    response = await real.send("/v1/responses", model="real-pair", input=SUM, temperature=0)
    assert [part["text"] for item in response["output"] for part in item["content"]] == [text]
    prompt = f"<|im_start|>system\n{SYSTEM} You are a helpful assistant.<|im_end|>\n<|im_start|>user\n{SUM}<|im_end|>\n"
    prompt += "<|im_start|>assistant\n"
    plain = await real.send("/v1/completions", model="real-pair", prompt=prompt, temperature=0)
    assert plain["choices"][0]["text"] == text
    assert plain["usage"]["prompt_tokens"] == chat["usage"]["prompt_tokens"]
    generated = await real.send("/generate", inputs=prompt, parameters={"max_new_tokens": 60})
    assert generated["generated_text"] == text


async def test_session_remembers_earlier_turns(real: RealPair) -> None:
    session = {"semspec": {"session": "names"}, "max_tokens": 30}
    await real.choice("My name is Ada. Remember it.", **session)
    choice = await real.choice("What is my name?", **session)
    assert "Ada" in choice["message"]["content"]


async def test_strategies_that_the_pair_lacks_are_refused_with_the_reason(real: RealPair) -> None:
    reasons = {
        "semantic": "needs probes",
        "token-level": "both models need the same ordinary tokens",
        "retrieval": "datastore",
    }
    for strategy, reason in reasons.items():
        error = await real.refusal(SUM, semspec={"strategy": strategy})
        assert error["param"] == "semspec.strategy" and reason in error["message"]
        assert "this pair supports 'likelihood', 'target', 'draft'" in error["message"]
