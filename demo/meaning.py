"""Propositions: the meanings of reasoning steps, which ones are valid next, and an author's distribution over them."""

from dataclasses import dataclass
from typing import Literal

from semspec.demo.problems import Operator, Problem, apply

Kind = Literal["goal", "start", "skip", "change", "part", "rest", "check", "recap", "done", "answer", "unreadable"]
Values = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Proposition:
    """The meaning of one step. Two steps mean the same if and only if their propositions are equal.

    `values` by kind: goal (item, last_day) · start (item, value) · skip (first_day, last_day) ·
    change (day, name, item, operator, delta, before, after) ·
    part (day, name, item, operator, delta, amount, before, after): the first share of a split change ·
    rest (operator, amount, before, after): the remaining share · check (operator, left, right, result) ·
    recap (day, item, value) · done (last_day,) · answer (value,) · unreadable (text,).
    """

    kind: Kind
    values: Values


@dataclass(slots=True)
class Progress:
    """State of a solution by its own statements: a wrong count, once written, is the current count."""

    goal_stated: bool = False
    value: int | None = None
    day: int = 0
    rest: tuple[Operator, int] | None = None  # a split change whose second part is missing
    last_change: tuple[Operator, int, int, int] | None = None  # operator, delta, before, after; None once remarked on
    done: bool = False
    answered: bool = False


def valid_next(problem: Problem, history: list[Proposition]) -> dict[Proposition, float]:
    """An author's distribution over the next step's meaning. Its support is the set of right steps.

    Empty when `history` is over or cannot be followed.
    """
    progress = replay(problem, history)
    if progress is None or progress.answered:
        return {}
    return _options(problem, progress)


def is_valid(problem: Problem, history: list[Proposition], step: Proposition) -> bool | None:
    """Whether `step` is right after `history`; None when `history` itself is invalid (see `replay`)."""
    progress = replay(problem, history)
    if progress is None:
        return None
    if progress.answered:
        return False
    options = _options(problem, progress)
    if step in options:
        return True
    if not _is_split(step, options):
        return False
    *_, operator, _, amount, before, after = step.values
    return after == apply(_int(before), _operator(operator), _int(amount))


def _is_split(step: Proposition, options: dict[Proposition, float]) -> bool:
    """Whether this is a valid split of a change that may be stated now, even if the author would not choose it."""
    if step.kind != "part":
        return False
    day, name, item, operator, delta, amount, before, _ = step.values
    stated = {option.values[:6] for option in options if option.kind == "change"}
    return (day, name, item, operator, delta, before) in stated and 0 < _int(amount) < _int(delta)


def _is_followable(step: Proposition, options: dict[Proposition, float]) -> bool:
    """Whether this step is allowed now, regardless of its result; later steps treat the result as true."""
    if step in options or _is_split(step, options):
        return True
    if step.kind not in ("start", "change", "rest", "answer"):
        return False
    return any(option.kind == step.kind and option.values[:-1] == step.values[:-1] for option in options)


def replay(problem: Problem, history: list[Proposition]) -> Progress | None:
    """Follow a solution's own statements, wrong results included; None from the first step that is out of place."""
    progress = Progress()
    for step in history:
        if progress.answered or not _is_followable(step, _options(problem, progress)):
            return None
        _advance(progress, step)
    return progress


def _advance(progress: Progress, step: Proposition) -> None:
    values = step.values
    match step.kind:
        case "goal":
            progress.goal_stated = True
        case "start":
            progress.value = _int(values[1])
        case "skip":
            progress.day, progress.last_change = _int(values[1]), None
        case "change":
            day, _, _, operator, delta, before, after = values
            progress.day, progress.value = _int(day), _int(after)
            progress.last_change = (_operator(operator), _int(delta), _int(before), _int(after))
        case "part":
            day, _, _, operator, delta, amount, _, after = values
            progress.day, progress.value = _int(day), _int(after)
            progress.rest, progress.last_change = (_operator(operator), _int(delta) - _int(amount)), None
        case "rest":
            operator, amount, before, after = values
            progress.value, progress.rest = _int(after), None
            progress.last_change = (_operator(operator), _int(amount), _int(before), _int(after))
        case "check" | "recap":
            progress.last_change = None
        case "done":
            progress.done = True
        case "answer":
            progress.answered = True


def _options(problem: Problem, progress: Progress) -> dict[Proposition, float]:
    if progress.value is None:
        options = {Proposition("start", (problem.item, problem.start)): 0.6}
        if not progress.goal_stated:
            options[Proposition("goal", (problem.item, len(problem.events)))] = 0.4
        return _normalised(options)
    if progress.rest is not None:
        operator, amount = progress.rest
        values = (operator, amount, progress.value, apply(progress.value, operator, amount))
        return {Proposition("rest", values): 1.0}
    options = {}
    if progress.done:
        return {Proposition("answer", (progress.value,)): 1.0}
    if progress.last_change is not None:
        options |= _remarks(problem, progress)
    share = 1.0 - sum(options.values())
    return options | {step: share * weight for step, weight in _moves(problem, progress).items()}


def _remarks(problem: Problem, progress: Progress) -> dict[Proposition, float]:
    """Optional steps after a change: check it backwards, or say where the count stands."""
    assert progress.last_change is not None and progress.value is not None
    operator, delta, before, after = progress.last_change
    inverse: Operator = "-" if operator == "+" else "+"
    return {
        Proposition("check", (inverse, after, delta, before)): 0.22,
        Proposition("recap", (progress.day, problem.item, progress.value)): 0.2,
    }


def _moves(problem: Problem, progress: Progress) -> dict[Proposition, float]:
    """Steps that proceed: skip idle days, go to the next change, or conclude."""
    num_idle = _num_idle(problem, progress.day)
    next_day = progress.day + num_idle + 1
    ahead = _conclude(problem, progress) if next_day > len(problem.events) else _state(problem, progress, next_day)
    skips = {
        Proposition("skip", (progress.day + 1, progress.day + num_days)): 0.35
        for num_days in range(1, min(num_idle, 2) + 1)
    }
    share = 1.0 - sum(skips.values())
    return skips | {step: share * weight for step, weight in ahead.items()}


def _num_idle(problem: Problem, day: int) -> int:
    num_idle = 0
    for event in problem.events[day:]:
        if event.operator is not None:
            break
        num_idle += 1
    return num_idle


def _conclude(problem: Problem, progress: Progress) -> dict[Proposition, float]:
    assert progress.value is not None
    return {
        Proposition("done", (len(problem.events),)): 0.4,
        Proposition("answer", (progress.value,)): 0.6,
    }


def _state(problem: Problem, progress: Progress, day: int) -> dict[Proposition, float]:
    """The change of `day`, in one step or, where it crosses a ten, also in two."""
    event, before = problem.events[day - 1], progress.value
    assert event.operator is not None and before is not None
    subject = (day, problem.name, problem.item, event.operator, event.delta)
    whole = Proposition("change", (*subject, before, apply(before, event.operator, event.delta)))
    to_ten = (-before) % 10 if event.operator == "+" else before % 10
    if not 0 < to_ten < event.delta:
        return {whole: 1.0}
    part = Proposition("part", (*subject, to_ten, before, apply(before, event.operator, to_ten)))
    return {whole: 0.5, part: 0.5}


def _normalised(options: dict[Proposition, float]) -> dict[Proposition, float]:
    total = sum(options.values())
    return {step: weight / total for step, weight in options.items()}


def _int(value: int | str) -> int:
    return int(value)


def _operator(value: int | str) -> Operator:
    return "+" if value == "+" else "-"
