"""Problems of the demo language, each identified by an integer seed. There are two kinds, with unlike wording.

Ledger: a count changes by days. Boxes: the digits in four boxes are moved and changed.
"""

import random
from dataclasses import dataclass
from typing import Literal

Operator = Literal["+", "-"]
Domain = Literal["ledger", "boxes"]
Action = Literal["swap", "on", "back", "turn", "more", "less"]

BOXES = ("a", "b", "c", "d")
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
class Ledger:
    """Facts of a ledger problem; day 1 first."""

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


@dataclass(frozen=True, slots=True)
class Move:
    """A change of the boxes. `boxes` and `amount` are those of the action, if it has any."""

    action: Action
    boxes: tuple[str, ...] = ()
    amount: int = 0


@dataclass(frozen=True, slots=True)
class Boxes:
    """Facts of a boxes problem: a digit per box, and the moves, move 1 first."""

    start: tuple[int, ...]
    moves: tuple[Move, ...]

    @property
    def answer(self) -> int:
        digits = self.start
        for move in self.moves:
            digits = moved(digits, move)
        return int("".join(map(str, digits)))


@dataclass(frozen=True, slots=True)
class Problem:
    """A question whose answer follows from its facts."""

    seed: int
    question: str
    facts: Ledger | Boxes

    @property
    def answer(self) -> int:
        return self.facts.answer

    @property
    def last(self) -> int:
        """Number of days, or of moves."""
        return len(self.facts.events if isinstance(self.facts, Ledger) else self.facts.moves)

    @property
    def domain(self) -> Domain:
        return "ledger" if isinstance(self.facts, Ledger) else "boxes"


def apply(value: int, operator: Operator | None, delta: int) -> int:
    """The count after one change."""
    if operator is None:
        return value
    return value + delta if operator == "+" else value - delta


def moved(digits: tuple[int, ...], move: Move) -> tuple[int, ...]:
    """The digits after one move."""
    match move.action:
        case "on":
            return (digits[-1], *digits[:-1])
        case "back":
            return (*digits[1:], digits[0])
        case "turn":
            return digits[::-1]
    changed = list(digits)
    if move.action == "swap":
        first, second = (BOXES.index(box) for box in move.boxes)
        changed[first], changed[second] = digits[second], digits[first]
    else:
        changed[BOXES.index(move.boxes[0])] += move.amount if move.action == "more" else -move.amount
    return tuple(changed)


def make_problem(seed: int) -> Problem:
    """The problem of this seed: a ledger problem if it is even, else a boxes problem."""
    rng = random.Random(seed)
    return Problem(seed, *(_ledger(rng) if seed % 2 == 0 else _boxes(rng)))


def _ledger(rng: random.Random) -> tuple[str, Ledger]:
    """6 to 9 days, at least three of them with a change, counts within 10..99."""
    name, item = rng.choice(NAMES), rng.choice(ITEMS)
    start = rng.randint(15, 85)
    events: list[Event] = []
    num_days, value = rng.randint(6, 9), start
    while len(events) < num_days:
        event = draw_event(rng, value, num_days - len(events), events, least_changes=3)
        if event is not None:
            value = apply(value, event.operator, event.delta)
            events.append(event)
    told = " ".join(f"Day {day}: {tell(rng, name, item, event)}" for day, event in enumerate(events, 1))
    question = f"{name} has {item}: {start}. {told} How many {item} does {name} have now?"
    return question, Ledger(name, item, start, tuple(events))


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


def _boxes(rng: random.Random) -> tuple[str, Boxes]:
    """6 to 9 moves of digits within 1..9."""
    start = tuple(rng.sample(range(1, 10), len(BOXES)))
    digits, moves = start, list[Move]()
    for _ in range(rng.randint(6, 9)):
        moves.append(_draw_move(rng, digits))
        digits = moved(digits, moves[-1])
    orders = (ORDERS[move.action].format(*_named(move)) for move in moves)
    told = " ".join(f"Move {number}: {order}." for number, order in enumerate(orders, 1))
    question = f"Four boxes hold digits: {row_of(start)}. {told} Which number do the boxes show now?"
    return question, Boxes(start, tuple(moves))


ORDERS: dict[Action, str] = {
    "swap": "swap {} and {}",
    "on": "shift on",
    "back": "shift back",
    "turn": "turn round",
    "more": "add {} to {}",
    "less": "take {} from {}",
}


def _draw_move(rng: random.Random, digits: tuple[int, ...]) -> Move:
    action: Action = rng.choices(tuple(ORDERS), (5, 1, 1, 1, 2, 2))[0]
    if action == "swap":
        return Move("swap", tuple(sorted(rng.sample(BOXES, 2))))
    if action not in ("more", "less"):
        return Move(action)
    index = rng.randrange(len(BOXES))
    room = 9 - digits[index] if action == "more" else digits[index] - 1
    return Move(action, (BOXES[index],), rng.randint(1, min(room, 5))) if room else _draw_move(rng, digits)


def _named(move: Move) -> tuple[str | int, ...]:
    return move.boxes if move.action == "swap" else (move.amount, *move.boxes)


def row_of(digits: tuple[int, ...]) -> str:
    """The digits with their boxes, as in `a4 b7 c1 d9`."""
    return " ".join(f"{box}{digit}" for box, digit in zip(BOXES, digits, strict=True))


def digits_of(row: str) -> tuple[int, ...]:
    """The reverse of `row_of`."""
    return tuple(int(piece[1]) for piece in row.split())
