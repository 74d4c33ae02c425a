"""Tasks by name, with their questions and graders."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Literal

from semspec.errors import InvalidRequest
from semspec.types import Message
from semspec_bench.tasks.choice import GPQA_DIAMOND, load_choice
from semspec_bench.tasks.mathematics import AIME_2024, AMC_2023, MATH_500, load_mathematics
from semspec_bench.tasks.protocol import Question, Task
from semspec_demo.client import MAX_TOKENS
from semspec_demo.problems import SPLITS, boxed, make_problem

__all__ = ["TASKS", "Question", "Task", "load_task"]


def load_demo(name: str, split: Literal["tune", "report"], data: str | None) -> Task:
    """Load all problems of a split. Raises: InvalidRequest when given data."""
    if data is not None:
        raise InvalidRequest(f"the task {name} makes its own questions", remedy="leave --data out")
    return Task(name, [_question(seed) for seed in SPLITS[split]], _is_right, max_tokens=MAX_TOKENS)


def _question(seed: int) -> Question:
    problem = make_problem(seed)
    return Question(str(seed), (Message("user", problem.question),), str(problem.answer))


def _is_right(reference: str, text: str) -> bool:
    return boxed(text) == reference


TASKS: Mapping[str, Callable[[str | None], Task]] = {
    "demo": partial(load_demo, "demo", "report"),
    "demo-tune": partial(load_demo, "demo-tune", "tune"),
    "math500": partial(load_mathematics, "math500", MATH_500, "unique_id"),
    "aime24": partial(load_mathematics, "aime24", AIME_2024, "id"),
    "amc23": partial(load_mathematics, "amc23", AMC_2023, "id"),
    "gpqa-diamond": partial(load_choice, "gpqa-diamond", GPQA_DIAMOND),
}
"""Loaders by task name, for questions of a file, of a dataset, or of the task itself."""


def load_task(name: str, data: str | None = None, limit: int | None = None) -> Task:
    """Load a task with its first `limit` questions.

    `data` names a JSON lines file or a dataset of the hub with the task's fields; None is the task's own.

    Raises: InvalidRequest when the name is unknown, the data cannot be read, or there are not that many questions.
    """
    if name not in TASKS:
        raise InvalidRequest(f"unknown task {name!r}", remedy=f"choose from {', '.join(TASKS)}")
    task = TASKS[name](data)
    if limit is not None and not 1 <= limit <= len(task.questions):
        raise InvalidRequest(
            f"limit is {limit}",
            remedy=f"{name} has {len(task.questions)} questions here: give 1 to {len(task.questions)}",
        )
    return replace(task, questions=task.questions[:limit])
