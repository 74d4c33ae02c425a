"""The runner through transformers' own `generate`, with the bundled pair and small changes of it."""

import json
from pathlib import Path

import pytest

from semspec.engine.checkpoint import load_tokenizer
from semspec.stack.config import BUNDLED_PAIR, StackConfig
from semspec.types import Message
from semspec_bench.configuration import parse
from semspec_bench.runners.assisted import TransformersRunner
from semspec_bench.runners.in_process import open_in_process
from semspec_bench.runners.protocol import Ask, NotApplicable
from semspec_demo.problems import make_problem
from tests.helpers.checkpoints import model_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
SHORT = 10_015_004
"""Problem with a short answer."""


@pytest.fixture(scope="module")
def transformers_runner() -> TransformersRunner:
    return TransformersRunner(BUNDLED_PAIR)


def asked(label: str, problem: int = SHORT, max_tokens: int = 400) -> Ask:
    messages = (Message("user", make_problem(problem).question),)
    return Ask(messages, parse(label), 0.0, 0.95, 1, max_tokens)


@pytest.mark.parametrize(
    ("problem", "max_tokens", "ends_by"), [(SHORT, 400, "stop"), (10_015_003, 50, "length")]
)
async def test_greedy_answers_equal_our_engines_whatever_proposes(
    transformers_runner: TransformersRunner, problem: int, max_tokens: int, ends_by: str
) -> None:
    async with open_in_process(StackConfig.of_pair(BUNDLED_PAIR)) as own:
        expected = await own.ask(asked("in-process/target", problem, max_tokens=max_tokens))
    assert expected.finish_reason == ends_by
    for method in ("target", "assisted", "lookup"):
        outcome = await transformers_runner.ask(
            asked(f"transformers/{method}", problem, max_tokens=max_tokens)
        )
        assert outcome.text == expected.text, method
        assert outcome.finish_reason == ends_by
        assert outcome.num_prompt_tokens == expected.num_prompt_tokens
        assert outcome.num_tokens == expected.num_tokens


@pytest.mark.parametrize(
    "method", ["target", "assisted", "assisted:tokens=5", "lookup", "lookup:tokens=3"]
)
async def test_budget_ends_answer(transformers_runner: TransformersRunner, method: str) -> None:
    outcome = await transformers_runner.ask(asked(f"transformers/{method}", max_tokens=9))
    assert (outcome.finish_reason, outcome.num_tokens) == ("length", 9)


async def test_other_tokenizer_of_the_same_size_is_not_applicable(tmp_path: Path) -> None:
    model_of("qwen2", vocab_size=1024, num_hidden_layers=1).save_pretrained(tmp_path / "draft")
    load_tokenizer(str(BUNDLED_PAIR / "target")).save_pretrained(tmp_path / "draft")
    path = tmp_path / "draft" / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["Ġball"], vocabulary["Ġcard"] = vocabulary["Ġcard"], vocabulary["Ġball"]
    path.write_text(json.dumps(tokenizer))
    (tmp_path / "target").symlink_to(BUNDLED_PAIR / "target")
    with pytest.raises(NotApplicable, match="same vocabulary size, 1024"):
        await TransformersRunner(tmp_path).ask(asked("transformers/assisted"))
