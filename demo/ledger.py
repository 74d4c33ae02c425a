"""Solutions of ledger problems: a count that changes by days."""

from semspec.demo.meaning import CARE, Mistakes, Proposition
from semspec.demo.problems import Ledger, Operator, apply

CHECKED = 0.12
"""Share of results that an author checks, and of those that are said again."""
CHECKED_HARD = 0.4
"""Share of hard results that an author checks: those of a sum that crosses a ten."""


class LedgerSolution:
    """See `semspec.demo.meaning.Solution`."""

    def __init__(self, facts: Ledger) -> None:
        self._facts = facts
        self._goal_stated = self._done = self.is_over = False
        self._value: int | None = None
        self._day = 0
        self._last: tuple[Operator, int, int, int] | None = None
        """Operator, delta, before and after of the last change, until it is remarked on."""

    def options(self, care: float = CARE) -> dict[Proposition, float]:
        if self.is_over:
            return {}
        if self._value is None:
            return self._beginnings()
        options: dict[Proposition, float] = {}
        if self._last is not None:
            options = self._remarks(care)
        share = 1.0 - sum(options.values())
        return options | {step: share * weight for step, weight in self._moves().items()}

    def allows(self, step: Proposition) -> bool:
        """One may say a right result again as if in correction."""
        if self._last is None:
            return False
        operator, delta, before, after = self._last
        return after == apply(before, operator, delta) and step == Proposition("fix", (operator, before, delta, after))

    def may_correct(self, step: Proposition) -> bool:
        if step.kind != "fix" or self._last is None:
            return False
        operator, delta, before, _ = self._last
        return step.values[:-1] == (operator, before, delta)

    def mistakes(self, step: Proposition) -> Mistakes:
        if step.kind != "change":
            return Mistakes()
        before, after = _int(step.values[-2]), _int(step.values[-1])
        has_carry = before // 10 != after // 10
        forgotten = after - 10 if after > before else after + 10
        gross = [forgotten] if has_carry else []
        return Mistakes(_with_result(step, gross), _with_result(step, [after + 1, after - 1]))

    def advance(self, step: Proposition) -> None:
        values = step.values
        match step.kind:
            case "goal":
                self._goal_stated = True
            case "start":
                self._value = _int(values[1])
            case "skip":
                self._day, self._last = _int(values[1]), None
            case "change":
                day, _, _, operator, delta, before, after = values
                self._day, self._value = _int(day), _int(after)
                self._last = (_operator(operator), _int(delta), _int(before), _int(after))
            case "fix":
                self._value, self._last = _int(values[-1]), None
            case "check" | "recap":
                self._last = None
            case "done":
                self._done, self._last = True, None
            case "answer":
                self.is_over = True

    def _beginnings(self) -> dict[Proposition, float]:
        start = Proposition("start", (self._facts.item, self._facts.start))
        if self._goal_stated:
            return {start: 1.0}
        return {start: 0.6, Proposition("goal", (self._facts.item, len(self._facts.events))): 0.4}

    def _remarks(self, care: float) -> dict[Proposition, float]:
        """Steps about the last change: a wrong result is corrected, a right one checked backwards or said again."""
        assert self._last is not None and self._value is not None
        operator, delta, before, after = self._last
        right = apply(before, operator, delta)
        if after != right:
            return {Proposition("fix", (operator, before, delta, right)): care}
        inverse: Operator = "-" if operator == "+" else "+"
        is_hard = before // 10 != after // 10
        return {
            Proposition("check", (inverse, after, delta, before)): CHECKED_HARD if is_hard else CHECKED,
            Proposition("recap", (self._day, self._facts.item, self._value)): CHECKED,
        }

    def _moves(self) -> dict[Proposition, float]:
        """Steps that proceed: pass over idle days, go to the next change, or conclude."""
        assert self._value is not None
        if self._done:
            return {Proposition("answer", (self._value,)): 1.0}
        num_idle = self._num_idle()
        if num_idle:
            return {
                Proposition("skip", (self._day + 1, self._day + days)): 1 / min(num_idle, 2)
                for days in (1, 2)[:num_idle]
            }
        if self._day == len(self._facts.events):
            return self._conclusions()
        return {self._change(self._day + 1): 1.0}

    def _num_idle(self) -> int:
        num_idle = 0
        for event in self._facts.events[self._day :]:
            if event.operator is not None:
                break
            num_idle += 1
        return num_idle

    def _conclusions(self) -> dict[Proposition, float]:
        assert self._value is not None
        return {
            Proposition("done", (len(self._facts.events),)): 0.4,
            Proposition("answer", (self._value,)): 0.6,
        }

    def _change(self, day: int) -> Proposition:
        event, before = self._facts.events[day - 1], self._value
        assert event.operator is not None and before is not None
        subject = (day, self._facts.name, self._facts.item, event.operator, event.delta)
        return Proposition("change", (*subject, before, apply(before, event.operator, event.delta)))


def _with_result(step: Proposition, results: list[int]) -> tuple[Proposition, ...]:
    return tuple(Proposition(step.kind, (*step.values[:-1], result)) for result in results if 0 <= result <= 99)


def _int(value: int | str) -> int:
    return int(value)


def _operator(value: int | str) -> Operator:
    return "+" if value == "+" else "-"
