"""The language for the probe pipeline: its questions, and the exact parser as ground truth."""

from collections.abc import Collection, Iterator, Sequence

from semspec.clustering.equivalence import Alternatives
from semspec.demo.documents import replay
from semspec.demo.problems import NUM_STYLES, SPLITS, facts_of, make_problem
from semspec.demo.reading import read
from semspec.demo.solutions import Step


def questions(split: str, styles: Collection[int] = range(NUM_STYLES), skip: int = 0) -> Iterator[dict[str, str]]:
    """Problems of a split, in these styles only; the id is the problem's seed."""
    for seed in SPLITS[split][skip:]:
        problem = make_problem(seed)
        if problem.style in styles:
            yield {"id": str(seed), "question": problem.question}


class ParserEquivalence:
    """Two steps mean the same iff they state the same claims; it cannot tell after other questions."""

    def clusters(self, groups: Sequence[Alternatives]) -> list[list[int | None]]:
        return [self._clusters(group) for group in groups]

    def _clusters(self, group: Alternatives) -> list[int | None]:
        facts = facts_of(group.question)
        if facts is None:
            return [None] * len(group.segments)
        solution = replay(facts, group.reasoning)
        holder = solution.holder if solution else None
        numbers: dict[Step, int | None] = {}
        return [numbers.setdefault(read(text, facts, holder), len(numbers)) for text in group.segments]


def is_right(question_id: str, reasoning: str, segment: str) -> bool | None:
    """Whether a step is right after the reasoning so far; None after an invalid step."""
    facts = make_problem(int(question_id)).facts
    solution = replay(facts, reasoning)
    return None if solution is None else solution.is_right(read(segment, facts, solution.holder))
