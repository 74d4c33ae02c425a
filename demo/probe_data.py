"""The language for the probe pipeline: its questions, and the exact parser as ground truth."""

from collections.abc import Collection, Iterator, Sequence

from semspec.clustering.equivalence import Alternatives
from semspec.demo.documents import DELIMITER, replay
from semspec.demo.problems import NUM_STYLES, SPLITS, Facts, facts_of, make_problem
from semspec.demo.reading import read
from semspec.demo.solutions import Solution, Step


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
        meanings = (_meaning(facts, group.reasoning, text)[1] for text in group.segments)
        numbers: dict[Step, int | None] = {}
        return [numbers.setdefault(meaning, len(numbers)) for meaning in meanings]


def is_right(question_id: str, reasoning: str, segment: str) -> bool | None:
    """Whether a step, or a sentence of one, is right after the reasoning so far; None after an invalid step, or a wrong
    sentence of the same paragraph."""
    facts = make_problem(int(question_id)).facts
    solution, meaning, begun = _meaning(facts, reasoning, segment)
    if solution is None or (begun and not solution.is_right(begun)):
        return None
    return solution.is_right(meaning)


def _meaning(facts: Facts, reasoning: str, segment: str) -> tuple[Solution | None, Step, Step | None]:
    """The solution before the segment's paragraph, what this states with the segment, and what without."""
    is_new = segment.startswith(DELIMITER)
    done, _, begun = (reasoning, "", "") if is_new else reasoning.rpartition(DELIMITER)
    solution = replay(facts, done)
    holder = solution.holder if solution else None
    return solution, read(begun + segment, facts, holder), read(begun, facts, holder) if begun else None
