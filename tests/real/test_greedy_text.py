"""Greedy text of our engine in fp32 equals that of plain transformers, for each real checkpoint.

`SEMSPEC_REAL_EQUALITY` names those to compare, with commas between them. Each takes minutes, and the largest 7 GB.
"""

import os
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from semspec.engine.checkpoint import load_tokenizer
from semspec.engine.torch_engine import TorchEngine
from semspec.types import Context, GenerationParams, Message, SamplingParams, Writer
from tests.real.support import DRAFT, LARGE, TARGET, real_model

pytestmark = pytest.mark.slow

MAX_TOKENS = 48
QUESTIONS = (
    "What is 17 + 25?",
    "Find the sum of the first ten odd numbers. Reason step by step.",
    "How many positive whole-number divisors does 196 have?",
    "Solve x^2 - 5x + 6 = 0 and put the final answer within \\boxed{}.",
    "Write a Python function that reverses a list in place.",
    "Translate 'good morning' into French, German and Spanish.",
    "用一句话介绍北京。",
    "Какой город — столица Франции?",
    "Write a haiku about rain 🌧️.",
    'Give a JSON object with the keys "name" and "age".',
    "Write a shell command that lists the five largest files.\n\nExplain it.",
)


@pytest.mark.parametrize("name", [DRAFT, TARGET, LARGE])
async def test_greedy_text_in_fp32_is_that_of_transformers(name: str) -> None:
    folder = real_model(name)
    if name not in os.environ.get("SEMSPEC_REAL_EQUALITY", "").split(","):
        pytest.skip(f"SEMSPEC_REAL_EQUALITY does not name {name}")
    expected = reference_texts(folder)
    assert await engine_texts(folder) == expected and len(set(expected)) > len(QUESTIONS) // 2


def reference_texts(folder: Path) -> list[str]:
    """Answers by plain transformers, with the tokenizer that the engine loads."""
    tokenizer = load_tokenizer(str(folder))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    texts = []
    for question in QUESTIONS:
        turns = [{"role": "user", "content": question}]
        inputs = tokenizer.apply_chat_template(
            turns, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        written = model.generate(**inputs, do_sample=False, max_new_tokens=MAX_TOKENS)[
            0, inputs["input_ids"].shape[1] :
        ]
        texts.append(str(tokenizer.decode(written, skip_special_tokens=True)))
    return texts


async def engine_texts(folder: Path) -> list[str]:
    """Answers by the engine, each from a context of its own."""
    engine = TorchEngine.load(str(folder), writer=Writer.TARGET, device="cpu", dtype="float32")
    params = GenerationParams(
        SamplingParams(temperature=0.0), max_segments=0, max_tokens=MAX_TOKENS
    )
    texts = []
    try:
        for question in QUESTIONS:
            context = Context((await engine.encode((Message("user", question),)),))
            texts.append(
                "".join([one.segment.text async for one in engine.generate(context, params)])
            )
    finally:
        await engine.aclose()
    return texts
