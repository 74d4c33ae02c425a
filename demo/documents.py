"""Solved problems in an author's wording: the training text of a pair."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from semspec.demo.boxes import BoxesSolution
from semspec.demo.ledger import LedgerSolution
from semspec.demo.meaning import CARE, Proposition, Solution, has_its_place, is_right_now
from semspec.demo.problems import Ledger, Problem, make_problem
from semspec.demo.wording import Author

DELIMITER = "\n\n"


@dataclass(frozen=True, slots=True)
class Document:
    """A problem with one solution, which may contain mistakes of its author."""

    problem: Problem
    meanings: tuple[Proposition, ...]
    segments: tuple[str, ...]

    @property
    def solution(self) -> str:
        return DELIMITER.join(self.segments)


@dataclass(frozen=True, slots=True)
class Mixed:
    """A problem with a solution that two authors wrote in turns."""

    problem: Problem
    segments: tuple[str, ...]
    is_model: tuple[bool, ...]
    """Whether a segment is one to learn from: right, and in the learner's own words."""


@dataclass(frozen=True, slots=True)
class Graded:
    """The beginning of a solution, and a grade of its last step: low digits for a wrong one, high for a right one."""

    problem: Problem
    segments: tuple[str, ...]
    grade: int

    @property
    def text(self) -> str:
        """The solution so far, up to where the next segment would begin."""
        end = "" if self.segments[-1].startswith("</think>") else DELIMITER
        return DELIMITER.join(self.segments) + end


def begin(problem: Problem) -> Solution:
    """An empty solution."""
    if isinstance(problem.facts, Ledger):
        return LedgerSolution(problem.facts)
    return BoxesSolution(problem.facts)


def replay(problem: Problem, history: Sequence[Proposition]) -> Solution | None:
    """The solution after these steps, wrong results included; None if one of them is out of place."""
    solution = begin(problem)
    for step in history:
        if not has_its_place(solution, step):
            return None
        solution.advance(step)
    return solution


def valid_next(problem: Problem, history: Sequence[Proposition], care: float = CARE) -> dict[Proposition, float]:
    """An author's distribution over the next step's meaning; empty when `history` is over or cannot be followed."""
    solution = replay(problem, history)
    return {} if solution is None else solution.options(care)


def is_valid(problem: Problem, history: Sequence[Proposition], step: Proposition) -> bool | None:
    """Whether `step` is right after `history`; None when `history` itself cannot be followed."""
    solution = replay(problem, history)
    return None if solution is None else is_right_now(solution, step)


def write_document(seed: int, author: Author, choices: random.Random | None = None) -> Document:
    """Solve the problem of `seed`; which steps, in what words and with what mistakes, follows `choices` (by default the
    seed)."""
    problem = make_problem(seed)
    rng = choices or random.Random(f"document {seed}")
    solution = begin(problem)
    meanings: list[Proposition] = []
    segments: list[str] = []
    while not solution.is_over:
        options = solution.options(author.habits.care)
        right = rng.choices(list(options), list(options.values()))[0]
        step = _slip(solution, right, author, rng) or right
        solution.advance(step)
        meanings.append(step)
        segments.append(author.write(step, rng))
    return Document(problem, tuple(meanings), tuple(segments))


OTHER_SHARE = 0.6
"""Share of the steps of a mixed solution that are not the learner's."""


def write_mixed(seed: int, learner: Author, other: Author) -> Mixed:
    """A solution of the problem of `seed` as it is served: most steps are the other author's, with its mistakes, and
    the learner corrects each wrong one that it follows."""
    problem = make_problem(seed)
    rng = random.Random(f"mixed {seed}")
    solution = begin(problem)
    segments: list[str] = []
    is_model: list[bool] = []
    while not solution.is_over:
        author = other if rng.random() < OTHER_SHARE else learner
        options = solution.options(1.0 if author is learner else author.habits.care)
        right = rng.choices(list(options), list(options.values()))[0]
        wrong = _slip(solution, right, author, rng)
        solution.advance(wrong or right)
        segments.append(author.write(wrong or right, rng))
        is_model.append(author is learner and wrong is None)
    return Mixed(problem, tuple(segments), tuple(is_model))


def write_graded(seed: int, author: Author) -> Graded:
    """A solution of the problem of `seed` up to some step, which is wrong in half of the cases, and its grade."""
    document = write_document(seed, author)
    rng = random.Random(f"graded {seed}")
    place = rng.randrange(len(document.meanings))
    solution = replay(document.problem, document.meanings[:place])
    assert solution is not None
    step = document.meanings[place]
    if rng.random() < 0.5 and (wrong := _wrong(solution, rng)):
        step = wrong
    is_right = is_right_now(solution, step)
    grade = rng.choices((9, 8, 7), (6, 3, 1))[0] if is_right else rng.choices((0, 1, 2, 3), (1, 4, 4, 1))[0]
    segments = (*document.segments[:place], author.write(step, rng))
    return Graded(document.problem, segments, grade)


def _slip(solution: Solution, right: Proposition, author: Author, rng: random.Random) -> Proposition | None:
    """A mistaken version of the step, as often as the author errs."""
    mistakes, habits = solution.mistakes(right), author.habits
    near = habits.near_hard if mistakes.gross else habits.near
    draw = rng.random()
    if mistakes.gross and draw < habits.gross:
        return rng.choice(mistakes.gross)
    if mistakes.near and draw > 1 - near:
        return rng.choice(mistakes.near)
    return None


def _wrong(solution: Solution, rng: random.Random) -> Proposition | None:
    """A wrong step that could stand here."""
    wrong = [step for option in solution.options() for step in _mistaken(solution, option)]
    return rng.choice(wrong) if wrong else None


def _mistaken(solution: Solution, option: Proposition) -> tuple[Proposition, ...]:
    mistakes = solution.mistakes(option)
    return mistakes.gross + mistakes.near
