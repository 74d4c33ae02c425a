"""The demo language's problems, by the seeds that name them; graded exactly."""

from typing import Literal

from bench.tasks.protocol import LoadedTask, Question
from demo.client import MAX_TOKENS, boxed
from demo.problems import SPLITS, make_problem
from semspec.errors import InvalidRequest
from semspec.types import Message


def load_demo(name: str, split: Literal["tune", "report"], data: str | None) -> LoadedTask:
    """All problems of a split. Raises: InvalidRequest when given data."""
    if data is not None:
        raise InvalidRequest(f"the task {name} makes its own questions; leave --data out", "data")
    return LoadedTask(name, [_question(seed) for seed in SPLITS[split]], _is_right, max_tokens=MAX_TOKENS)


def _question(seed: int) -> Question:
    problem = make_problem(seed)
    return Question(str(seed), (Message("user", problem.question),), str(problem.answer))


def _is_right(reference: str, text: str) -> bool:
    return boxed(text) == reference
