"""The committed pair: small enough to commit, its parts fit each other, and it answers, also every question that the
documents, the playground and `semspec serve` show."""

import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from semspec.engine.checkpoint import load_tokenizer, model_fingerprint, tokenizer_fingerprint
from semspec.stack import BUNDLED_PAIR, StackConfig
from semspec.types import Message
from semspec_bench.configuration import parse
from semspec_bench.runners.in_process import InProcessRunner, open_in_process
from semspec_bench.runners.protocol import Ask, Outcome
from semspec_bench.tasks import Question, load_task
from semspec_demo.client import MAX_TOKENS
from semspec_demo.problems import boxed
from tests.demo.solver import solve

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
SHOWN_IN = (
    "README.md",
    "docs/**/*.md",
    "gateway/semspec_gateway/api/static/*",
    "semspec/commands/*.py",
)
QUESTION = re.compile(r"Style \d\. [^?\"]*at the end\?")
NUM_SEEDS = 12


def questions() -> list[str]:
    """The questions, whose strings may go over several lines of source."""
    files = (path for pattern in SHOWN_IN for path in sorted(ROOT.glob(pattern)) if path.is_file())
    joined = (re.sub(r'"\s*\+?\s*"', "", path.read_text(errors="ignore")) for path in files)
    return sorted({question for text in joined for question in QUESTION.findall(text)})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runner() -> AsyncIterator[InProcessRunner]:
    async with open_in_process(StackConfig.of_pair(BUNDLED_PAIR)) as runner:
        yield runner


def test_pair_is_at_most_20_mebibytes() -> None:
    assert (
        sum(path.stat().st_size for path in BUNDLED_PAIR.rglob("*") if path.is_file()) <= 20 << 20
    )


@pytest.mark.parametrize("role", ["draft", "target"])
def test_probes_belong_to_the_models_beside_them(role: str) -> None:
    card = json.loads((BUNDLED_PAIR / "probes" / f"{role}.json").read_text())
    assert card["fingerprint"] == model_fingerprint(str(BUNDLED_PAIR / role))
    assert card["tokenizer"] == tokenizer_fingerprint(load_tokenizer(str(BUNDLED_PAIR / role)))
    metrics = card["metrics"]
    assert metrics["num_contexts"] >= 2000 and metrics["right_means"] == "truth"
    assert metrics["auroc"] >= 0.985 and metrics["wrong_accepted_at_95_right"] <= 0.03
    assert max(metrics["ece"].values()) <= 0.05
    verdicts = [(verdict["criterion"], verdict["standing"]) for verdict in metrics["verdicts"]]
    assert verdicts == [("truth", "good"), ("target says it", "bad")]


@pytest.mark.asyncio(loop_scope="module")
async def test_target_answers_and_the_loop_accepts_and_rewrites(runner: InProcessRunner) -> None:
    task = load_task("demo-tune")
    questions = task.questions[100:112]

    async def ask(label: str, question: Question) -> Outcome:
        return await runner.ask(
            Ask(question.messages, parse(label), 0.6, 0.95, int(question.id), task.max_tokens)
        )

    semantic = [(question, await ask("in-process/semantic", question)) for question in questions]
    target = [(question, await ask("in-process/target", question)) for question in questions[:6]]
    assert sum(task.is_right(question, outcome.text) for question, outcome in target) >= 5
    assert sum(task.is_right(question, outcome.text) for question, outcome in semantic) >= 8
    verdicts = Counter(row["verdict"] for _, outcome in semantic for row in outcome.trace)
    assert verdicts["accepted"] > verdicts["rewritten"] > 0


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("question", questions())
async def test_question_is_answered_rightly(runner: InProcessRunner, question: str) -> None:
    """Greedy, and with all but one of the seeds."""

    async def is_right(temperature: float, seed: int) -> bool:
        messages = (Message("user", question),)
        outcome = await runner.ask(
            Ask(messages, parse("in-process/semantic"), temperature, 0.95, seed, MAX_TOKENS)
        )
        return boxed(outcome.text) == str(solve(question))

    assert await is_right(0.0, 0)
    assert sum([await is_right(0.6, seed) for seed in range(NUM_SEEDS)]) >= NUM_SEEDS - 1
