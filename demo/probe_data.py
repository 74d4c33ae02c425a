"""The language for the probe pipeline: its questions, and the exact parser as ground truth."""

from collections.abc import Collection, Iterator, Sequence

from semspec.clustering.equivalence import Alternatives
from semspec.demo.documents import DELIMITER, is_valid
from semspec.demo.meaning import Proposition
from semspec.demo.problems import SPLITS, make_problem
from semspec.demo.wording import read


def questions(split: str, domains: Collection[str] = ("ledger", "boxes"), skip: int = 0) -> Iterator[dict[str, str]]:
    """Problems of a split, of these domains only; the id is the problem's seed."""
    for seed in SPLITS[split][skip:]:
        problem = make_problem(seed)
        if problem.domain in domains:
            yield {"id": str(seed), "question": problem.question}


class ParserEquivalence:
    """Two steps mean the same iff they state the same proposition."""

    def clusters(self, groups: Sequence[Alternatives]) -> list[list[int]]:
        return [self._clusters(group) for group in groups]

    def _clusters(self, group: Alternatives) -> list[int]:
        numbers: dict[Proposition, int] = {}  # the last day or move is the same for all, so any number stands for it
        return [numbers.setdefault(read(segment, 0), len(numbers)) for segment in group.segments]


def is_right(question_id: str, reasoning: str, segment: str) -> bool | None:
    """Whether a step is right after the reasoning so far; None after an invalid step."""
    problem = make_problem(int(question_id))
    history = [read(step, problem.last) for step in reasoning.split(DELIMITER) if step]
    return is_valid(problem, history, read(segment, problem.last))
