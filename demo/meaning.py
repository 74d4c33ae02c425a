"""Propositions: the meanings of reasoning steps, and which ones are right next."""

from dataclasses import dataclass
from typing import Literal, Protocol

LedgerKind = Literal["goal", "start", "skip", "change", "check", "fix", "recap", "done"]
BoxesKind = Literal["aim", "set", "swap", "on", "back", "turn", "more", "less", "look", "amend", "ready"]
Kind = LedgerKind | BoxesKind | Literal["answer", "unreadable"]
Values = tuple[int | str, ...]

CARE = 0.5
"""Share of wrong results that an author corrects in the next step, where no other is given."""


@dataclass(frozen=True, slots=True)
class Proposition:
    """The meaning of one step. Two steps mean the same if and only if their propositions are equal.

    `values` by kind, for a ledger: goal (item, last_day) · start (item, value) · skip (first_day, last_day) ·
    change (day, name, item, operator, delta, before, after) ·
    check (operator, left, right, result) ·
    fix (operator, left, right, result): a wrong result corrected · recap (day, item, value) · done (last_day,).
    For boxes: aim (last_move,) · set (row,) · swap (move, first, second, row) · on, back, turn (move, row) ·
    more, less (move, amount, box, row) · look (box, digit) · amend (row,): a wrong row corrected · ready (last_move,).
    For both: answer (value,) · unreadable (text,).
    """

    kind: Kind
    values: Values


class Solution(Protocol):
    """A solution as far as it goes, by its own statements: a wrong result, once written, is the current one."""

    @property
    def is_over(self) -> bool:
        """Whether the answer is given."""
        ...

    def options(self, care: float = CARE) -> dict[Proposition, float]:
        """An author's distribution over the next step's meaning. Its support is the set of right steps, except for
        those of `allows`."""
        ...

    def allows(self, step: Proposition) -> bool:
        """Whether a step that is not among `options` is right, although no author chooses it."""
        ...

    def may_correct(self, step: Proposition) -> bool:
        """Whether `step` corrects the last result, even where that is right."""
        ...

    def mistakes(self, step: Proposition) -> "Mistakes":
        """Wrong results that read like `step`, which is among `options`."""
        ...

    def advance(self, step: Proposition) -> None:
        """Go on after a step that has its place here, even with a wrong result."""
        ...


@dataclass(frozen=True, slots=True)
class Mistakes:
    """Wrong versions of one step."""

    gross: tuple[Proposition, ...] = ()
    """Of a hard step only: a carry forgotten, a row half turned."""
    near: tuple[Proposition, ...] = ()
    """Of any calculation: off by one, two neighbours exchanged."""


def is_right_now(solution: Solution, step: Proposition) -> bool:
    """Whether `step` is right after `solution`."""
    return not solution.is_over and (step in solution.options() or solution.allows(step))


def has_its_place(solution: Solution, step: Proposition) -> bool:
    """Whether `step` may stand after `solution`, regardless of its result, which later steps treat as true."""
    if solution.is_over:
        return False
    if is_right_now(solution, step) or solution.may_correct(step):
        return True
    if step.kind not in RESULTS:
        return False
    return any(option.kind == step.kind and option.values[:-1] == step.values[:-1] for option in solution.options())


RESULTS = frozenset(("start", "change", "fix", "answer", "set", "swap", "on", "back", "turn", "more", "less", "amend"))
"""Kinds whose last value is a result."""
