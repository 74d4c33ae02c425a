"""Every question that the documents, the playground and `semspec serve` show is answered rightly."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from semspec.bench.configuration import parse
from semspec.bench.runners.in_process import InProcessRunner, open_in_process
from semspec.bench.runners.protocol import Ask
from semspec.demo.client import MAX_TOKENS, boxed
from semspec.stack import BUNDLED_PAIR
from semspec.types import Message
from tests.demo.solver import solve

ROOT = Path(__file__).parents[2]
SHOWN_IN = ("README.md", "docs/**/*.md", "gateway/api/static/*", "semspec/commands/*.py")
QUESTION = re.compile(r"(?:[A-Z][a-z]+ has [a-z]+: \d+\.|Four boxes hold digits:)[^?]*\bnow\?")
NUM_SEEDS = 12


def questions() -> list[str]:
    """The questions, whose strings may go over several lines of source."""
    texts = (
        path.read_text(errors="ignore") for pattern in SHOWN_IN for path in sorted(ROOT.glob(pattern)) if path.is_file()
    )
    joined = (re.sub(r'"\s*\+?\s*"', "", text) for text in texts)
    return sorted({question for text in joined for question in QUESTION.findall(text)})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runner() -> AsyncIterator[InProcessRunner]:
    async with open_in_process(BUNDLED_PAIR) as runner:
        yield runner


def test_documents_show_both_kinds() -> None:
    assert {question.startswith("Four boxes") for question in questions()} == {True, False}


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("question", questions())
async def test_question_is_answered_rightly(runner: InProcessRunner, question: str) -> None:
    """Greedy, and with all but one of the seeds."""

    async def is_right(temperature: float, seed: int) -> bool:
        messages = (Message("user", question),)
        outcome = await runner.ask(Ask(messages, parse("in-process/semantic"), temperature, 0.95, seed, MAX_TOKENS))
        return boxed(outcome.text) == str(solve(question))

    assert await is_right(0.0, 0)
    assert sum([await is_right(0.6, seed) for seed in range(NUM_SEEDS)]) >= NUM_SEEDS - 1
