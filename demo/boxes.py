"""Solutions of boxes problems: the digits in four boxes are moved and changed."""

from semspec.demo.meaning import CARE, Mistakes, Proposition
from semspec.demo.problems import BOXES, Boxes, Move, digits_of, moved, row_of

LOOKED = 0.12
"""Share of moves after which an author looks into a box."""
LOOKED_HARD = 0.4
"""The same after a hard move: one that moves all digits."""
HARD = ("on", "back", "turn")


class BoxesSolution:
    """See `semspec.demo.meaning.Solution`."""

    def __init__(self, facts: Boxes) -> None:
        self._facts = facts
        self._aim_stated = self._ready = self.is_over = False
        self._digits: tuple[int, ...] | None = None
        self._num_moves = 0
        self._last: tuple[str, tuple[int, ...]] | None = None
        """Action of the last move and its right result, until it is remarked on."""

    def options(self, care: float = CARE) -> dict[Proposition, float]:
        if self.is_over:
            return {}
        if self._digits is None:
            return self._beginnings()
        options = self._remarks(care) if self._last else {}
        share = 1.0 - sum(options.values())
        return options | {step: share * weight for step, weight in self._moves().items()}

    def allows(self, step: Proposition) -> bool:
        """One may look into any box at any time after a move, and say its right row again as if in correction."""
        if self._digits is None or self._last is None:
            return False
        if step.kind == "amend":
            return step.values[-1] == row_of(self._digits) == row_of(self._last[1])
        if step.kind != "look":
            return False
        box, digit = step.values
        return box in BOXES and self._digits[BOXES.index(str(box))] == digit

    def may_correct(self, step: Proposition) -> bool:
        return step.kind == "amend" and self._last is not None

    def mistakes(self, step: Proposition) -> Mistakes:
        if step.kind not in ("swap", "more", "less", *HARD):
            return Mistakes()
        assert self._digits is not None
        result = digits_of(str(step.values[-1]))
        gross = _gross(step.kind, self._digits)
        near = [_exchanged(result, index) for index in range(len(result) - 1)]
        return Mistakes(_with_row(step, result, gross), _with_row(step, result, near))

    def advance(self, step: Proposition) -> None:
        values = step.values
        match step.kind:
            case "aim":
                self._aim_stated = True
            case "set":
                self._digits = digits_of(str(values[-1]))
            case "swap" | "on" | "back" | "turn" | "more" | "less":
                assert self._digits is not None
                right = moved(self._digits, self._facts.moves[self._num_moves])
                self._digits, self._last = digits_of(str(values[-1])), (step.kind, right)
                self._num_moves += 1
            case "amend":
                self._digits, self._last = digits_of(str(values[-1])), None
            case "look":
                self._last = None
            case "ready":
                self._ready, self._last = True, None
            case "answer":
                self.is_over = True

    def _beginnings(self) -> dict[Proposition, float]:
        start = Proposition("set", (row_of(self._facts.start),))
        if self._aim_stated:
            return {start: 1.0}
        return {start: 0.6, Proposition("aim", (len(self._facts.moves),)): 0.4}

    def _remarks(self, care: float) -> dict[Proposition, float]:
        """Steps about the last move: a wrong row is corrected, of a right one a box may be looked at."""
        assert self._last is not None and self._digits is not None
        action, right = self._last
        if self._digits != right:
            return {Proposition("amend", (row_of(right),)): care}
        changed = self._facts.moves[self._num_moves - 1].boxes[:1] or BOXES[:1]
        digit = self._digits[BOXES.index(changed[0])]
        return {Proposition("look", (changed[0], digit)): LOOKED_HARD if action in HARD else LOOKED}

    def _moves(self) -> dict[Proposition, float]:
        """Steps that proceed: the next move, or the conclusion."""
        assert self._digits is not None
        answer = Proposition("answer", (int("".join(map(str, self._digits))),))
        if self._ready:
            return {answer: 1.0}
        if self._num_moves == len(self._facts.moves):
            return {Proposition("ready", (self._num_moves,)): 0.4, answer: 0.6}
        move = self._facts.moves[self._num_moves]
        if not _is_possible(self._digits, move):  # after a wrong digit
            return {answer: 1.0}
        return {_stated(move, self._num_moves + 1, moved(self._digits, move)): 1.0}


def _stated(move: Move, number: int, result: tuple[int, ...]) -> Proposition:
    row = row_of(result)
    match move.action:
        case "swap":
            return Proposition("swap", (number, *move.boxes, row))
        case "more" | "less":
            return Proposition(move.action, (number, move.amount, move.boxes[0], row))
    return Proposition(move.action, (number, row))


def _is_possible(digits: tuple[int, ...], move: Move) -> bool:
    return all(0 <= digit <= 9 for digit in moved(digits, move))


def _gross(kind: str, digits: tuple[int, ...]) -> list[tuple[int, ...]]:
    """A row turned half, or shifted to the wrong side."""
    match kind:
        case "turn":
            return [(digits[3], digits[1], digits[2], digits[0])]
        case "on":
            return [moved(digits, Move("back"))]
        case "back":
            return [moved(digits, Move("on"))]
    return []


def _exchanged(digits: tuple[int, ...], index: int) -> tuple[int, ...]:
    """Two neighbours exchanged."""
    changed = list(digits)
    changed[index], changed[index + 1] = changed[index + 1], changed[index]
    return tuple(changed)


def _with_row(step: Proposition, right: tuple[int, ...], results: list[tuple[int, ...]]) -> tuple[Proposition, ...]:
    return tuple(Proposition(step.kind, (*step.values[:-1], row_of(result))) for result in results if result != right)
