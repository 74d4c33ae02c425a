"""The demo language for the probe pipeline: its questions, and the exact parser as ground truth."""

from collections.abc import Iterator, Sequence

from semspec.demo.meaning import Proposition, is_valid
from semspec.demo.problems import SPLITS, make_problem
from semspec.demo.wording import read
from semspec.training.clustering.equivalence import Alternatives


def questions(split: str, days: Sequence[int] = (3, 4, 5, 6), skip: int = 0) -> Iterator[dict[str, str]]:
    """Problems of a split that last so many days; the id is the problem's seed."""
    for seed in SPLITS[split][skip:]:
        problem = make_problem(seed)
        if len(problem.events) in days:
            yield {"id": str(seed), "question": problem.question}


class ParserEquivalence:
    """Two steps mean the same iff they state the same proposition."""

    def clusters(self, groups: Sequence[Alternatives]) -> list[list[int]]:
        return [self._clusters(group) for group in groups]

    def _clusters(self, group: Alternatives) -> list[int]:
        last_day = len(make_problem(int(group.question_id)).events)
        numbers: dict[Proposition, int] = {}
        return [numbers.setdefault(read(segment, last_day), len(numbers)) for segment in group.segments]


def is_right(question_id: str, reasoning: str, segment: str) -> bool | None:
    """Whether a step is right after the reasoning so far; None after an invalid step."""
    problem = make_problem(int(question_id))
    last_day = len(problem.events)
    history = [read(step, last_day) for step in reasoning.split("\n\n") if step]
    return is_valid(problem, history, read(segment, last_day))
