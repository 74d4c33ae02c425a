"""Training data of the language's NLI model: pairs of steps, and whether the first entails the second."""

import random
import re
from collections.abc import Container, Iterator
from dataclasses import dataclass, replace

from semspec_demo.documents import DELIMITER, Document, replay, write_document
from semspec_demo.problems import NUM_STYLES, SPLITS, Problem, make_problem
from semspec_demo.reading import read, spans, values_of
from semspec_demo.solutions import UNREADABLE, Claim, Solution
from semspec_demo.solutions import Step as Meaning
from semspec_demo.wording import ADVERBS, MARK, SLOTS, Writer

LABELS = ("CONTRADICTION", "NEUTRAL", "ENTAILMENT")
CONTRADICTION, NEUTRAL, ENTAILMENT = range(3)

PIECE = r" ?[A-Za-z]+| ?[0-9]|</?think>\n*|[^\w\s]|\s"
WORDS = (
    *ADVERBS,
    *(word for words in SLOTS.values() for text in words for word in re.findall(PIECE, text)),
)


@dataclass(frozen=True, slots=True)
class Step:
    """A step's text, what it means where it stands, and the character spans (start, end) that state a value of it."""

    text: str
    meaning: Meaning
    fields: tuple[tuple[int, int, str], ...] = ()

    @property
    def stated(self) -> dict[str, int | str]:
        return values_of(self.meaning)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two steps after one context, and one of `LABELS`."""

    context: str
    premise: Step
    hypothesis: Step

    @property
    def label(self) -> int:
        if self.premise.text == self.hypothesis.text:
            return ENTAILMENT
        return relation(self.premise.meaning, self.hypothesis.meaning)


def relation(premise: Meaning, hypothesis: Meaning) -> int:
    """A step entails one that makes some of its claims, and says the same of the step before.

    Claims of the same kinds contradict each other otherwise. What cannot be read entails nothing.
    """
    if UNREADABLE in (premise, hypothesis):
        return NEUTRAL
    if premise.corrects == hypothesis.corrects and {*hypothesis.claims} <= {*premise.claims}:
        return ENTAILMENT
    kinds = [[claim[0] for claim in step.claims] for step in (premise, hypothesis)]
    return CONTRADICTION if kinds[0] == kinds[1] else NEUTRAL


def pairs(
    seed: int, contextual: float, held_out: Container[str] = (), num_pairs: int = 4
) -> Iterator[Pair]:
    """Pairs at random places of the problem of `seed`, or of a later one where its question is `held_out`.

    A share `contextual` of them stands after the solution so far.
    """
    document = write_document(seed)
    if document.problem.question in held_out:
        yield from pairs(seed + 1_000_000, contextual, held_out, num_pairs)
        return
    rng = random.Random(f"pairs {seed}")
    for _ in range(num_pairs):
        position = rng.randrange(len(document.steps))
        so_far = "".join(segment + DELIMITER for segment in document.segments[:position])
        solution = replay(document.problem.facts, so_far)
        assert solution is not None
        is_alone = rng.random() >= contextual
        context = "" if is_alone else f"{document.problem.question}{DELIMITER}{so_far}"
        first, second = _two_steps(solution, document, is_alone, rng)
        if rng.random() < 0.5:
            first, second = second, first
        yield Pair(context, first, second)


def _two_steps(
    solution: Solution, document: Document, is_alone: bool, rng: random.Random
) -> tuple[Step, Step]:
    """Write two steps. `is_alone`: name the holder of the ball instead of using pronouns, which need the context."""
    options = list(solution.options(0.5))
    holder = None if is_alone else solution.holder

    def words(meaning: Meaning) -> Step:
        problem: Problem = replace(document.problem, style=rng.randrange(1, NUM_STYLES))
        text = Writer(problem, rng).write(meaning, holder).replace(MARK, "")
        return Step(text, meaning, tuple(spans(text)))

    def wrong(meaning: Meaning) -> Meaning:
        return rng.choice(solution.mistakes(meaning) or [meaning])

    def broken(step: Step) -> Step:
        text = _broken(step.text, rng)
        return Step(text, read(text, solution.facts, holder))

    meaning = rng.choice(options)
    if rng.random() < 0.4:
        meaning = wrong(meaning)
    first, draw = words(meaning), rng.random()
    if draw < 0.42:
        return first, words(meaning)
    if draw < 0.68:
        return first, words(wrong(meaning))
    if draw < 0.84:
        return first, broken(first if rng.random() < 0.5 else words(meaning))
    if draw < 0.88:
        return broken(first), broken(words(meaning))
    if draw < 0.95:
        fewer: tuple[Claim, ...] = meaning.claims[: rng.randint(1, len(meaning.claims))]
        return first, words(replace(meaning, claims=fewer))
    return first, words(rng.choice(options))


def _broken(text: str, rng: random.Random) -> str:
    """The text with one word or digit changed, lost, doubled, or out of place; it may still make sense."""
    pieces = re.findall(PIECE, text)
    digits = [index for index, piece in enumerate(pieces) if piece.strip().isdigit()]
    index = rng.randrange(len(pieces))
    draw = rng.random()
    if draw < 0.45 and digits:
        index = rng.choice(digits)
        pieces[index] = pieces[index][:-1] + str(rng.randrange(10))
    elif draw < 0.6:
        del pieces[index]
    elif draw < 0.7:
        length = rng.randint(1, 5)
        pieces[index:index] = pieces[index : index + length]
    elif draw < 0.85:
        pieces[index] = " " + rng.choice(WORDS).strip()
    elif draw < 0.95:
        other = rng.randrange(len(pieces))
        pieces[index], pieces[other] = pieces[other], pieces[index]
    else:
        del pieces[index:]
    return "".join(pieces).strip()


def held_out_questions() -> frozenset[str]:
    """Questions that are excluded from training pairs."""
    return frozenset(
        make_problem(seed).question
        for split in ("probe", "tune", "report")
        for seed in SPLITS[split]
    )
