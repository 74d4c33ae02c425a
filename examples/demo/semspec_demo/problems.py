"""Problems of the demo language, each identified by an integer seed: a ring of people who pass a ball.

Each of 8 or 9 people, whose cards differ in their tens, passes to one other, and the prompt tells who in a shuffled
order. Rounds have one or two passes, and one has four, which is hard: three layers compute three at most.
"""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

WOMEN = ("Ada", "Bea", "Cora", "Dina", "Ella", "Fay", "Gina", "Hana", "Ivy", "June", "Kate", "Lily")
MEN = ("Abel", "Bob", "Carl", "Dan", "Emil", "Finn", "Gus", "Hugo", "Ivan", "Jack", "Karl", "Leo")
SPLITS = {
    "train": range(0, 10_000_000),
    "probe": range(10_000_000, 10_010_000),
    "tune": range(10_010_000, 10_015_000),
    "report": range(10_015_000, 10_020_000),
}
"""Problem seeds by purpose: `train` for models, `probe` for probes, `tune` for options, `report` for results."""
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
NUM_STYLES = 4
"""Styles of wording: the higher, the more a meaning's form varies."""


@dataclass(frozen=True, slots=True)
class Facts:
    """People by place in the ring; each passes to the next, the last to the first."""

    names: tuple[str, ...]
    cards: tuple[int, ...]
    start: int
    rounds: tuple[int, ...]
    """Number of passes of each round."""

    def after(self, person: int, passes: int) -> int:
        return (person + passes) % len(self.names)

    def tell_cards(self, people: Sequence[int]) -> str:
        """The sentence of their cards. A number follows its person at once, which is quickly learnt to look up."""
        return f"Cards: {', '.join(f'{self.names[person]} {self.cards[person]}' for person in people)}."

    @property
    def answer(self) -> int:
        return self.cards[self.after(self.start, sum(self.rounds))]


@dataclass(frozen=True, slots=True)
class Problem:
    """A question whose answer follows from its facts."""

    seed: int
    style: int
    question: str
    facts: Facts

    @property
    def answer(self) -> int:
        return self.facts.answer

    def is_right(self, text: str) -> bool:
        """Return whether the last box of `text`, reasoning included, has the answer."""
        return boxed(text) == str(self.answer)


def boxed(text: str) -> str | None:
    """The content of the last `\\boxed{}`."""
    answers = _BOXED.findall(text)
    return answers[-1].strip() if answers else None


def make_problem(seed: int, style: int | None = None) -> Problem:
    """The problem of this seed; its style is drawn too unless it is given, and nothing else depends on it."""
    rng = random.Random(seed)
    drawn = rng.randrange(NUM_STYLES)
    style = drawn if style is None else style
    size = rng.randint(8, 9)
    names = tuple(rng.sample(WOMEN + MEN, size))
    num_rounds = rng.randint(6, 9)
    hard = rng.randrange(num_rounds)
    rounds = tuple(4 if index == hard else rng.choice((1, 1, 2)) for index in range(num_rounds))
    cards = tuple(10 * tens + rng.randrange(10) for tens in rng.sample(range(1, 10), size))
    facts = Facts(names, cards, rng.randrange(size), rounds)
    return Problem(seed, style, " ".join(_told(facts, style, rng)), facts)


def _told(facts: Facts, style: int, rng: random.Random) -> Iterator[str]:
    people = range(len(facts.names))
    yield f"Style {style}."
    for person in rng.sample(people, len(people)):
        yield f"{facts.names[person]} passes to {facts.names[facts.after(person, 1)]}."
    yield facts.tell_cards(rng.sample(people, len(people)))
    yield f"The ball starts with {facts.names[facts.start]}."
    for number, passes in enumerate(facts.rounds, 1):
        yield f"Round {number}: {passes} {'pass' if passes == 1 else 'passes'}."
    yield "Which card has the ball at the end?"


def facts_of(question: str) -> Facts | None:
    """The facts that a question tells; None if it is not of this language. People are numbered from who has the ball
    first."""
    passes = dict(re.findall(r"(\w+) passes to (\w+)\.", question))
    cards = {name: int(card) for name, card in re.findall(r"(\w+) (\d\d)[,.]", question)}
    start = re.search(r"The ball starts with (\w+)\.", question)
    names = [start[1]] if start else []
    while names and passes.get(names[-1], names[0]) not in names:
        names.append(passes[names[-1]])
    if not names or {*names} != {*passes} or {*names} != {*cards}:
        return None
    rounds = tuple(int(number) for number in re.findall(r"Round \d: (\d) pass", question))
    return Facts(tuple(names), tuple(cards[name] for name in names), 0, rounds)
