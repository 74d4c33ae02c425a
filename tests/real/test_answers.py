"""What OpenAI's and TGI's APIs offer besides tools and formats, asked of the real pair."""

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
