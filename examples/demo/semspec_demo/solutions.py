"""Solutions of the demo language's problems, and the meaning of each step.

A step is a paragraph of one to three claims: who has the ball after some passes, without those between; a card, a
comparison, the next person, the rounds left. Its first word says whether the step before is right ("So") or wrong
("No", and then the right claim follows).
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from semspec_demo.problems import Facts

Claim = tuple[int | str, ...]
"""A kind and its values: start (person,) · move (passes, person) · card (person, number) ·
compare (person, other, sign) · next (person, to) · left (rounds,) · answer (number,). People are numbered by their
place in the ring."""


@dataclass(frozen=True, slots=True)
class Step:
    """The meaning of one paragraph. Two steps mean the same if and only if they are equal."""

    claims: tuple[Claim, ...]
    corrects: bool = False
    """Whether it says that the step before is wrong ("No")."""


UNREADABLE = Step((("left", "unreadable"),))
REMARKS: dict[str, float] = {"next": 0.6, "left": 0.4}
EXTRAS: dict[Claim, float] = {
    (): 0.05,
    ("card",): 0.15,
    ("card", "next"): 0.7,
    ("card", "compare"): 0.1,
}


@dataclass(slots=True)
class Solution:
    """A solution as far as it goes, by its own statements: a wrong claim, once written, is the current one."""

    facts: Facts
    holder: int | None = None
    num_rounds: int = 0
    pending: Claim | None = None
    """The right version of the last step's first wrong claim, until it is corrected or left."""
    is_over: bool = False
    remarked: set[str] = field(default_factory=set)

    def options(self, care: float) -> dict[Step, float]:
        """An author's distribution over the next step; `care` is the share of wrong steps that it corrects."""
        if self.is_over:
            return {}
        if self.holder is None:
            return {Step((("start", self.facts.start),)): 1.0}
        steps = dict(self._onward())
        if self.pending is None:
            return steps
        return {Step((self.pending,), corrects=True): care} | {
            step: (1 - care) * p for step, p in steps.items()
        }

    def _onward(self) -> Iterator[tuple[Step, float]]:
        assert self.holder is not None
        free = {kind: p for kind, p in REMARKS.items() if self._may_remark(kind)}
        share = 0.2 if free else 0.0
        for kind, weight in free.items():
            yield Step((self._remark(kind),)), share * weight / sum(free.values())
        if self.num_rounds == len(self.facts.rounds):
            yield Step((("answer", self.facts.cards[self.holder]),)), 1 - share
            return
        passes = self.facts.rounds[self.num_rounds]
        to = self.facts.after(self.holder, passes)
        for kinds, weight in EXTRAS.items():
            claims: list[Claim] = [("move", passes, to)]
            if "card" in kinds:
                claims.append(("card", to, self.facts.cards[to]))
            if "compare" in kinds:
                claims.append(("compare", to, self.holder, self._sign(to, self.holder)))
            if "next" in kinds:
                claims.append(("next", to, self.facts.after(to, 1)))
            yield Step(tuple(claims)), (1 - share) * weight

    def _may_remark(self, kind: str) -> bool:
        return kind not in self.remarked and (
            kind != "left" or self.num_rounds < len(self.facts.rounds)
        )

    def _remark(self, kind: str) -> Claim:
        assert self.holder is not None
        if kind == "left":
            return ("left", len(self.facts.rounds) - self.num_rounds)
        return ("next", self.holder, self.facts.after(self.holder, 1))

    def _sign(self, person: int, other: int) -> str:
        return "higher" if self.facts.cards[person] > self.facts.cards[other] else "lower"

    def about(self, rng: random.Random) -> list[Claim]:
        """Claims to look up about who has the ball."""
        assert self.holder is not None
        other = self.facts.after(self.holder, rng.randrange(1, len(self.facts.names)))
        compared: Claim = ("compare", self.holder, other, self._sign(self.holder, other))
        card: Claim = ("card", self.holder, self.facts.cards[self.holder])
        return [card, compared, self._remark("next")]

    def right(self, claim: Claim) -> Claim | None:
        """The right version of `claim` here; None if no such claim can stand here."""
        if claim[0] in ("start", "move") and any(not isinstance(value, int) for value in claim[1:]):
            return None
        match claim:
            case ("start", _):
                return ("start", self.facts.start) if self.holder is None else None
            case ("move", _, _):
                if self.holder is None or self.num_rounds == len(self.facts.rounds):
                    return None
                passes = self.facts.rounds[self.num_rounds]
                return ("move", passes, self.facts.after(self.holder, passes))
            case ("card", int(person), _):
                return ("card", person, self.facts.cards[person])
            case ("compare", int(person), int(other), _):
                return (
                    ("compare", person, other, self._sign(person, other))
                    if person != other
                    else None
                )
            case ("next", int(person), _):
                return ("next", person, self.facts.after(person, 1))
            case ("left", _):
                return ("left", len(self.facts.rounds) - self.num_rounds)
            case ("answer", _):
                at_end = self.holder is not None and self.num_rounds == len(self.facts.rounds)
                return ("answer", self.facts.cards[self.holder or 0]) if at_end else None
        return None

    def is_right(self, step: Step) -> bool:
        """Whether each claim is right after this solution; a correction must correct the wrong claim."""
        if self.is_over or step == UNREADABLE:
            return False
        if step.corrects:
            return self.pending is not None and step.claims == (self.pending,)
        after = Solution(self.facts, self.holder, self.num_rounds)
        for claim in step.claims:
            if after.right(claim) != claim:
                return False
            after._take(claim)
        return True

    def judge(self, step: Step) -> list[bool]:
        """Whether each claim of a step is right, of one that can be followed; go on after it."""
        after, are_right = Solution(self.facts, self.holder, self.num_rounds), list[bool]()
        for claim in step.claims:
            are_right.append(claim == (self.pending if step.corrects else after.right(claim)))
            after._take(claim)
        assert self.advance(step)
        return are_right

    def advance(self, step: Step) -> bool:
        """Go on after a step. False if the step cannot be followed: unreadable, or not to be said here."""
        if self.is_over or step == UNREADABLE or (step.corrects and self.pending is None):
            return False
        if step.corrects:
            assert self.pending is not None
            claim = step.claims[0]
            if claim[0] != self.pending[0]:
                return False
            if claim[0] in ("start", "move"):
                self.holder = int(claim[-1])
            self.pending = None if claim == self.pending else self.pending
            return True
        wrong: Claim | None = None
        for claim in step.claims:
            right = self.right(claim)
            if right is None:
                return False
            wrong = wrong or (right if right != claim else None)
            self._take(claim)
        self.pending = wrong
        return True

    def _take(self, claim: Claim) -> None:
        match claim:
            case ("start", int(person)):
                self.holder = person
            case ("move", _, int(person)):
                self.holder = person
                self.num_rounds += 1
                self.remarked = set()
            case ("answer", _):
                self.is_over = True
            case ("next" | "left", *_):
                self.remarked.add(str(claim[0]))

    def mistakes(self, step: Step) -> list[Step]:
        """Wrong steps that read like `step`, which is right here."""
        if step.corrects or not step.claims:
            return []
        changed: list[Step] = []
        for index, claim in enumerate(step.claims):
            for wrong in self._wrong(claim):
                rest = step.claims[index + 1 :]
                if claim[0] == "move":
                    rest = self._about(int(wrong[2]), rest)
                changed.append(Step((*step.claims[:index], wrong, *rest)))
        return changed

    def _about(self, person: int, claims: tuple[Claim, ...]) -> tuple[Claim, ...]:
        """The same claims about another person, right as such."""
        about = (self.right((claim[0], person, *claim[2:])) for claim in claims)
        return tuple(claim for claim in about if claim)

    def _wrong(self, claim: Claim) -> list[Claim]:
        people = range(len(self.facts.names))
        match claim:
            case ("move", passes, int(person)):
                return [("move", passes, other) for other in people if other != person]
            case ("card", person, int(number)):
                turned = number % 10 * 10 + number // 10
                numbers = {card for card in self.facts.cards if card != number} | {turned} - {
                    number
                }
                return [("card", person, wrong) for wrong in sorted(numbers) if wrong > 10]
            case ("compare", person, other, sign):
                return [("compare", person, other, "lower" if sign == "higher" else "higher")]
            case ("next", int(person), int(to)):
                return [("next", to, person), ("next", person, self.facts.after(to, 1))]
            case ("left", int(count)):
                return [("left", count - 1)] if count > 1 else [("left", count + 1)]
        return []
