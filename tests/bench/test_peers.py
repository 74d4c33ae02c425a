"""The runner through transformers' own `generate`, with the bundled pair and small changes of it."""

import json
from pathlib import Path

import pytest
import torch
from transformers import GenerationConfig

from semspec.engine.checkpoint import load_tokenizer
from semspec.stack.config import BUNDLED_PAIR, StackConfig
from semspec.types import Message
from semspec_bench.configuration import parse
from semspec_bench.runners.assisted import TransformersRunner
from semspec_bench.runners.in_process import open_in_process
from semspec_bench.runners.protocol import Ask, NotApplicable, RunnerError
from semspec_demo.problems import make_problem
from tests.helpers.checkpoints import model_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
SHORT = 10_015_004
"""Problem with a short answer."""


@pytest.fixture(scope="module")
def transformers_runner() -> TransformersRunner:
    return TransformersRunner(BUNDLED_PAIR)


def asked(
    label: str, problem: int = SHORT, temperature: float = 0.0, max_tokens: int = 400, seed: int = 1
) -> Ask:
    messages = (Message("user", make_problem(problem).question),)
    return Ask(messages, parse(label), temperature, 0.95, seed, max_tokens)


def link_target(folder: Path, but: str) -> None:
    """The bundled target in `folder`, without its file `but`."""
    (folder / "target").mkdir(parents=True)
    for path in (BUNDLED_PAIR / "target").iterdir():
        if path.name != but:
            (folder / "target" / path.name).symlink_to(path)


def other_pair(folder: Path, vocab_size: int, swap_tokens: bool) -> Path:
    """The bundled target with an untrained draft, which may have another vocabulary."""
    torch.manual_seed(0)
    model_of("qwen2", vocab_size=vocab_size, num_hidden_layers=1).save_pretrained(folder / "draft")
    load_tokenizer(str(BUNDLED_PAIR / "target")).save_pretrained(folder / "draft")
    if swap_tokens:
        path = folder / "draft" / "tokenizer.json"
        tokenizer = json.loads(path.read_text())
        vocabulary = tokenizer["model"]["vocab"]
        vocabulary["Ġball"], vocabulary["Ġcard"] = vocabulary["Ġcard"], vocabulary["Ġball"]
        path.write_text(json.dumps(tokenizer))
    (folder / "target").symlink_to(BUNDLED_PAIR / "target")
    return folder


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
        assert (outcome.num_prompt_tokens, outcome.num_tokens) == (
            expected.num_prompt_tokens,
            expected.num_tokens,
        )


@pytest.mark.parametrize(
    "method", ["target", "assisted", "assisted:tokens=5", "lookup", "lookup:tokens=3"]
)
async def test_budget_ends_an_answer_to_the_token(
    transformers_runner: TransformersRunner, method: str
) -> None:
    outcome = await transformers_runner.ask(asked(f"transformers/{method}", max_tokens=9))
    assert (outcome.finish_reason, outcome.num_tokens) == ("length", 9)


async def test_sampled_answer_is_named_by_its_seed(transformers_runner: TransformersRunner) -> None:
    first, again, other = [
        await transformers_runner.ask(
            asked("transformers/assisted", temperature=1.0, max_tokens=40, seed=seed)
        )
        for seed in (1, 1, 2)
    ]
    assert first.text == again.text != other.text


async def test_checkpoints_own_sampling_settings_are_left_out(
    transformers_runner: TransformersRunner, tmp_path: Path
) -> None:
    link_target(tmp_path, but="generation_config.json")
    own = GenerationConfig(
        do_sample=True, temperature=5.0, top_k=3, repetition_penalty=9.0, eos_token_id=1
    )
    own.save_pretrained(tmp_path / "target")
    outcome = await TransformersRunner(tmp_path).ask(asked("transformers/target", max_tokens=20))
    assert (
        outcome.text
        == (await transformers_runner.ask(asked("transformers/target", max_tokens=20))).text
    )


@pytest.mark.parametrize(("vocab_size", "swap_tokens"), [(1040, False), (1040, True)])
async def test_draft_with_another_vocabulary_changes_no_greedy_answer(
    transformers_runner: TransformersRunner, tmp_path: Path, vocab_size: int, swap_tokens: bool
) -> None:
    expected = await transformers_runner.ask(asked("transformers/target", max_tokens=12))
    runner = TransformersRunner(other_pair(tmp_path, vocab_size, swap_tokens))
    assert (
        await runner.ask(asked("transformers/assisted:tokens=2", max_tokens=12))
    ).text == expected.text


async def test_padded_vocabulary_can_be_sampled(tmp_path: Path) -> None:
    runner = TransformersRunner(other_pair(tmp_path, 1040, swap_tokens=False))
    outcome = await runner.ask(
        asked("transformers/assisted:tokens=2", temperature=1.0, max_tokens=12)
    )
    assert outcome.num_tokens == 12


async def test_other_tokenizer_of_the_same_size_is_not_applicable(tmp_path: Path) -> None:
    runner = TransformersRunner(other_pair(tmp_path, 1024, swap_tokens=True))
    with pytest.raises(NotApplicable, match="same vocabulary size, 1024"):
        await runner.ask(asked("transformers/assisted"))


async def test_answer_past_the_window_is_refused_with_a_remedy(
    transformers_runner: TransformersRunner,
) -> None:
    with pytest.raises(RunnerError, match="window of 4096; give a lower --max-tokens"):
        await transformers_runner.ask(asked("transformers/target", max_tokens=4090))


async def test_pair_without_files_is_refused_with_a_remedy(tmp_path: Path) -> None:
    link_target(tmp_path / "pair", but="chat_template.jinja")
    for pair, words in (
        (tmp_path / "pair", "chat template"),
        (tmp_path / "nowhere", "give another --pair"),
    ):
        with pytest.raises(RunnerError, match=words):
            await TransformersRunner(pair).ask(asked("transformers/target"))
