"""Word problems of the demo language, each identified by an integer seed."""

import random
from dataclasses import dataclass
from typing import Literal

Operator = Literal["+", "-"]

NAMES = ("Tom", "Sara", "Max", "Lily", "Ben", "Nora", "Omar", "Ivy")
ITEMS = ("apples", "pens", "coins", "books", "cards", "shells", "cups", "beads", "stamps", "marbles")
GAIN_VERBS = ("buys", "finds", "gets")
LOSE_VERBS = ("loses", "sells", "drops")
IDLE_VERBS = ("sleeps", "walks", "reads", "naps")

SPLITS = {
    "train": range(0, 10_000_000),
    "probe": range(10_000_000, 10_010_000),
    "tune": range(10_010_000, 10_015_000),
    "report": range(10_015_000, 10_020_000),
}
"""Problem seeds by purpose: `train` for models, `probe` for probes, `tune` for options, `report` for results."""


@dataclass(frozen=True, slots=True)
class Event:
    """The event of one day: a change of the count, or none (`operator` is None)."""

    operator: Operator | None
    delta: int


@dataclass(frozen=True, slots=True)
class Problem:
    """A question whose answer follows from its `events`, day 1 first."""

    question: str
    name: str
    item: str
    start: int
    events: tuple[Event, ...]

    @property
    def answer(self) -> int:
        value = self.start
        for event in self.events:
            value = apply(value, event.operator, event.delta)
        return value


def apply(value: int, operator: Operator | None, delta: int) -> int:
    """The count after one change."""
    if operator is None:
        return value
    return value + delta if operator == "+" else value - delta


def make_problem(seed: int) -> Problem:
    """The problem of this seed: 3 to 6 days, at least two of them with a change, counts within 10..99."""
    rng = random.Random(seed)
    name, item = rng.choice(NAMES), rng.choice(ITEMS)
    start = rng.randint(15, 85)
    events: list[Event] = []
    sentences: list[str] = []
    num_days, value = rng.randint(3, 6), start
    while len(events) < num_days:
        event = draw_event(rng, value, num_days - len(events), events, least_changes=2)
        if event is None:
            continue
        value = apply(value, event.operator, event.delta)
        events.append(event)
        sentences.append(f"Day {len(events)}: {tell(rng, name, item, event)}")
    question = f"{name} has {item}: {start}. {' '.join(sentences)} How many {item} does {name} have now?"
    return Problem(question, name, item, start, tuple(events))


def draw_event(
    rng: random.Random, value: int, num_days_left: int, events: list[Event], least_changes: int
) -> Event | None:
    """The next day's event, or None if the sampled one leaves the allowed range of counts."""
    num_changes_missing = least_changes - sum(1 for event in events if event.operator)
    if rng.random() < 0.3 and num_days_left > num_changes_missing:
        return Event(None, 0)
    operator: Operator = "+" if rng.random() < 0.5 else "-"
    delta = rng.randint(2, 9)
    return Event(operator, delta) if 10 <= apply(value, operator, delta) <= 99 else None


def tell(rng: random.Random, name: str, item: str, event: Event) -> str:
    """The sentence of a day."""
    if event.operator is None:
        return f"{name} {rng.choice(IDLE_VERBS)}."
    verb = rng.choice(GAIN_VERBS if event.operator == "+" else LOSE_VERBS)
    return f"{name} {verb} {event.delta} {item}."
