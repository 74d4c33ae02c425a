"""Solved problems in an author's wording: the training text of the bundled pair."""

import random
from dataclasses import dataclass

from semspec.demo.meaning import Proposition, valid_next
from semspec.demo.problems import Problem, make_problem
from semspec.demo.wording import Author

END = "<eos>"
DELIMITER = "\n\n"
THINK = f"{DELIMITER}<think>{DELIMITER}"


@dataclass(frozen=True, slots=True)
class Document:
    """A problem with one correct solution."""

    problem: Problem
    meanings: tuple[Proposition, ...]
    segments: tuple[str, ...]

    @property
    def prompt(self) -> str:
        return self.problem.question + THINK

    @property
    def solution(self) -> str:
        return DELIMITER.join(self.segments) + END


def write_document(seed: int, author: Author, choices: random.Random | None = None) -> Document:
    """Solve the problem of `seed`; which valid steps, and in what words, follows `choices` (by default the seed)."""
    problem = make_problem(seed)
    rng = choices or random.Random(f"document {seed}")
    meanings: list[Proposition] = []
    segments: list[str] = []
    while not meanings or meanings[-1].kind != "answer":
        options = valid_next(problem, meanings)
        meanings.append(rng.choices(list(options), list(options.values()))[0])
        segments.append(author.write(meanings[-1], rng))
    return Document(problem, tuple(meanings), tuple(segments))
