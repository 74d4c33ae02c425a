"""Solved problems, with the author's mistakes: the training texts of the pair; and the way back from text."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from semspec_demo.problems import Facts, Problem, make_problem
from semspec_demo.reading import read
from semspec_demo.solutions import Solution, Step
from semspec_demo.wording import MARK, Writer

DELIMITER = "\n\n"


@dataclass(frozen=True, slots=True)
class Document:
    """A problem with a solution, which may contain mistakes."""

    problem: Problem
    steps: tuple[Step, ...]
    marked: tuple[str, ...]
    """The segments, with a `MARK` where the end of a move is named."""
    is_learnt: tuple[bool, ...]
    """Whether a segment is one to learn from: a planted mistake is not."""
    holders: tuple[int | None, ...]
    """Who has the ball before each step."""
    log_probability: float
    """Of all forms, given the meanings."""

    @property
    def segments(self) -> list[str]:
        return [segment.replace(MARK, "") for segment in self.marked]

    @property
    def solution(self) -> str:
        return DELIMITER.join(self.segments)


SLIP, CARE, PLANTED = 0.05, 0.9, 0.4
"""Share of steps at which the author errs, of wrong steps that it corrects, and of steps of a mixed solution that are
planted mistakes."""


def write_document(
    seed: int,
    style: int | None = None,
    planted: float = 0.0,
    care: float = 1.0,
    begun: Sequence[str] = (),
) -> Document:
    """Solve the problem of `seed`; mistakes are planted in this share of the steps; of those, `care` is corrected.
    `begun`: segments to go on from, as far as they can be followed, and not to learn."""
    problem = make_problem(seed, style)
    rng = random.Random(f"document {seed} {style} {planted}")
    solution, writer = Solution(problem.facts), Writer(problem, rng)
    rows: list[tuple[Step, str, bool, int | None]] = []

    def append(step: Step, segment: str, is_learnt: bool) -> bool:
        holder = solution.holder
        if is_followed := solution.advance(step):
            rows.append((step, segment, is_learnt, holder))
        return is_followed

    for text in begun:
        if not append(read(text, problem.facts, solution.holder), text, is_learnt=False):
            break
    while not solution.is_over:
        options = solution.options(care if planted else CARE)
        step = rng.choices(list(options), list(options.values()))[0]
        draw, mistakes = rng.random(), solution.mistakes(step)
        if mistakes and draw < max(SLIP, planted):
            step = rng.choice(_balanced(mistakes, rng))
        is_followed = append(
            step, writer.write(step, solution.holder), not (planted and mistakes and draw < planted)
        )
        assert is_followed, step
    steps, segments, learnt, holders = zip(*rows, strict=True)
    return Document(problem, steps, segments, learnt, holders, writer.log_probability)


def _balanced(mistakes: list[Step], rng: random.Random) -> list[Step]:
    """Mistakes of one kind of claim, each kind as likely."""
    kinds: dict[object, list[Step]] = {}
    for step in mistakes:
        kinds.setdefault(tuple(claim[0] for claim in step.claims), []).append(step)
    return kinds[rng.choice(list(kinds))]


def replay(facts: Facts, reasoning: str) -> Solution | None:
    """The solution after this text, its mistakes included; None if a step cannot be followed."""
    solution = Solution(facts)
    for segment in filter(None, reasoning.split(DELIMITER)):
        if not solution.advance(read(segment, facts, solution.holder)):
            return None
    return solution
