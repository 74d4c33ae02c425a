"""The language for the probe pipeline: its questions, and the exact parser as ground truth."""

from collections.abc import Collection, Iterator, Sequence

from semspec.clustering.equivalence import Alternatives
from semspec_demo.documents import DELIMITER, replay
from semspec_demo.problems import NUM_STYLES, SPLITS, Facts, facts_of, make_problem
from semspec_demo.reading import read
from semspec_demo.solutions import Solution, Step


def questions(
    split: str, styles: Collection[int] = range(NUM_STYLES), skip: int = 0
) -> Iterator[dict[str, str]]:
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
        starts = {
            is_new: _paragraph_start(facts, group.reasoning, is_new)
            for is_new in set(map(_is_new, group.segments))
        }
        numbers: dict[Step, int | None] = {}
        found = []
        for text in group.segments:
            solution, paragraph = starts[_is_new(text)]
            meaning = read(paragraph + text, facts, solution.holder if solution else None)
            found.append(numbers.setdefault(meaning, len(numbers)))
        return found


def is_right(question_id: str, reasoning: str, segment: str) -> bool | None:
    """Whether a step, or a sentence of one, is right after the reasoning so far; None after an invalid step, or a wrong
    sentence of the same paragraph."""
    facts = make_problem(int(question_id)).facts
    solution, paragraph = _paragraph_start(facts, reasoning, _is_new(segment))
    if solution is None or (
        paragraph and not solution.is_right(read(paragraph, facts, solution.holder))
    ):
        return None
    return solution.is_right(read(paragraph + segment, facts, solution.holder))


def _is_new(segment: str) -> bool:
    """Whether a segment ends the paragraph before it."""
    return segment.startswith(DELIMITER)


def _paragraph_start(facts: Facts, reasoning: str, is_new: bool) -> tuple[Solution | None, str]:
    """The solution before a segment's paragraph, and what stands of this paragraph; nothing if it `is_new`."""
    done, _, paragraph = (reasoning, "", "") if is_new else reasoning.rpartition(DELIMITER)
    return replay(facts, done), paragraph
