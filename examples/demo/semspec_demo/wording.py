"""Wording: steps as text in the style that the prompt names.

A kind of claim has templates. In a template, `<slot>` is filled from synonyms, `{field}` from the claim, and `~` is a
place where an adverb may stand: before what a claim is true by, so that where a wrong word could stand, many right and
rare ones could too. The style sets how far the choices spread; both models learn the same author.
"""

import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from semspec_demo.problems import WOMEN, Problem
from semspec_demo.solutions import Claim, Step

SLOTS: dict[str, tuple[str, ...]] = {
    "ball": (
        "the ball",
        "it",
        "this ball",
        "the one ball",
        "that ball",
        "our ball",
        "the round ball",
        "the game ball",
    ),
    "starts": (
        "starts with",
        "begins with",
        "comes first to",
        "opens with",
        "is first with",
        "sets out from",
    ),
    "after": (
        "after",
        "with",
        "once we count",
        "following",
        "at the end of",
        "through",
        "on making",
        "by way of",
    ),
    "has": ("has", "holds", "gets", "keeps", "receives", "takes", "catches", "is given"),
    "reaches": (
        "reaches",
        "comes to",
        "arrives at",
        "lands with",
        "goes to",
        "ends with",
        "stops at",
        "gets to",
    ),
    "shows": ("shows", "reads", "draws", "bears", "states", "turns up", "carries", "displays"),
    "higher": ("higher", "greater", "larger", "bigger", "not lower", "not smaller", "not less"),
    "lower": ("lower", "smaller", "lesser", "less", "not higher", "not greater", "not larger"),
    "passes": (
        "passes to",
        "hands to",
        "throws to",
        "gives to",
        "tosses to",
        "sends to",
        "turns to",
        "rolls to",
    ),
    "have": ("have", "see", "count", "face", "expect", "owe", "find", "need"),
    "left": ("left", "to come", "ahead", "to go", "open", "more", "to play", "in store"),
    "answer": (
        "The answer is",
        "We get",
        "The result is",
        "The card is",
        "It comes to",
        "This makes",
    ),
}
TEMPLATES: dict[int | str, tuple[str, ...]] = {
    "start": ("<ball> <starts>~~ {person}",),
    "move": (
        "<after> {passes}~~ {who}~ <has> <ball>",
        "<after> {passes} <ball> <reaches>~~ {whom}~",
    ),
    "card": ("{who} <shows>~~ {number}", "the card of {whom} is~~ {number}"),
    "compare": (
        "{whose} card is~~ <sign> than that of {other}",
        "{other} has one that is~~ <turned> than that of {whom}",
    ),
    "next": ("{who} <passes>~~ {to}",),
    "left": ("we <have>~~ {rounds} <left>",),
    "answer": ("<answer> \\boxed{{number}}",),
}
ADVERBS = tuple(
    """
    clearly surely plainly indeed now then also here again simply rightly duly safely truly really fairly
    quickly slowly calmly neatly finally next just soon gladly kindly openly firmly gently quietly boldly warmly
    nicely freely lightly promptly readily swiftly smoothly directly bravely brightly briefly broadly busily
    carefully certainly cheerfully closely coolly correctly daily deeply deftly dimly eagerly early easily
    evenly exactly expertly faintly faithfully famously fast finely fondly formally fully gamely gracefully
    grandly greatly happily hardly honestly humbly idly instantly jointly justly keenly largely lastly lately
    lazily loosely loudly lovingly luckily mainly merrily mildly modestly mostly mutely nearly nimbly nobly
    normally oddly often once only orderly partly patiently perfectly politely precisely presently proudly
    purely rapidly rarely roughly sharply shyly silently sincerely softly solemnly steadily still straight
    strictly strongly suddenly
    """.split()
)
UNITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
         "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")  # fmt: skip
TENS = (
    "",
    "",
    "twenty",
    "thirty",
    "forty",
    "fifty",
    "sixty",
    "seventy",
    "eighty",
    "ninety",
    "a hundred",
)
MARK = "\0"
"""Stands, while a paragraph is written, before the word that names who has the ball after a move."""
T = TypeVar("T")
PLACEHOLDER = re.compile(r"<(\w+)>|\{(\w+)\}|(~+)")


@dataclass(frozen=True, slots=True)
class Spread:
    """How far an author's choices spread in one style."""

    decay: float
    """A synonym's weight falls by this exponent from each to the next."""
    adverb: float
    """Probability of an adverb where one may stand; all are equally likely."""
    pronoun: float
    """Probability of a pronoun where one may stand."""
    number: tuple[float, float, float]
    """Weights of digits, words and "short of"."""


SPREADS = (
    Spread(50.0, 0.0, 0.0, (1, 0, 0)),
    Spread(2.4, 0.08, 0.05, (0.9, 0.06, 0.04)),
    Spread(1.4, 0.35, 0.15, (0.6, 0.2, 0.2)),
    Spread(0.8, 0.55, 0.3, (1, 1, 1)),
)


@dataclass
class Writer:
    """Writes steps of one problem; `log_probability` adds up that of the forms chosen, given the meanings."""

    problem: Problem
    rng: random.Random
    log_probability: float = 0.0

    @property
    def spread(self) -> Spread:
        return SPREADS[self.problem.style]

    def write(self, step: Step, holder: int | None) -> str:
        """The paragraph of `step`, when `holder` has the ball, with a `MARK` where the end of a move is named."""
        if step.claims[0][0] == "answer":
            return f"</think>\n{self._claim(step.claims[0], None)}."
        sentences: list[str] = []
        for claim in step.claims:
            topic = holder if claim[0] not in ("start", "move") else None
            sentences.append(self._claim(claim, topic))
            holder = int(claim[-1]) if claim[0] in ("start", "move") else holder
        first, *others = sentences
        others = [text[0].upper() + text[1:] for text in others]
        return ". ".join([f"{'No,' if step.corrects else 'So'} {first}", *others]) + "."

    def _claim(self, claim: Claim, topic: int | None) -> str:
        """One sentence without its full stop; a pronoun may stand for `topic`."""
        values = dict(zip(VALUES[claim[0]], claim[1:], strict=True))
        templates = TEMPLATES[claim[0]]
        template = self._pick(
            templates, [1.0, *[math.exp(-self.spread.decay)] * (len(templates) - 1)]
        )

        def fill(match: re.Match[str]) -> str:
            slot, name, adverbs = match.groups()
            if adverbs:
                share = self.spread.adverb
                weights = [
                    math.comb(len(adverbs), n) * share**n * (1 - share) ** (len(adverbs) - n)
                    for n in range(3)
                ]
                number = self._pick(range(3), weights)
                return "".join(f" {self._pick(ADVERBS, [1] * len(ADVERBS))}" for _ in range(number))
            if slot:
                return self._synonym(slot, values)
            match name:
                case "who" | "whom" | "whose":
                    form = self._person(int(values["person"]), name, topic)
                    return re.sub(r"\w+$", rf"{MARK}\g<0>", form) if claim[0] == "move" else form
                case "to" | "other" | "person":
                    return self._person(int(values[name]), "who", None)
                case "passes" | "rounds":
                    count, noun = int(values[name]), "pass" if name == "passes" else "round"
                    digits = self._pick((str(count), UNITS[count]), self.spread.number[:2])
                    return (
                        f"{digits} {noun}{'es' if noun == 'pass' else 's'}"
                        if count != 1
                        else f"{digits} {noun}"
                    )
                case "number" if claim[0] == "card":
                    return self._number(int(values["number"]))
            return str(values[name])

        return PLACEHOLDER.sub(fill, template)

    def _synonym(self, slot: str, values: dict[str, int | str]) -> str:
        if slot in ("sign", "turned"):
            slot = "higher" if (values["sign"] == "higher") == (slot == "sign") else "lower"
        words = SLOTS[slot]
        return self._pick(
            words, [math.exp(-self.spread.decay * rank) for rank in range(len(words))]
        )

    def _person(self, person: int, case: str, topic: int | None) -> str:
        name = self.problem.facts.names[person]
        if person == topic:
            short = self._pick(
                ("", pronoun(name, case)), (1 - self.spread.pronoun, self.spread.pronoun)
            )
            if short:
                return short
        return f"{name}'s" if case == "whose" else name

    def _number(self, number: int) -> str:
        forms = number_forms(number)
        return self._pick(forms, self.spread.number[: len(forms)])

    def _pick(self, options: Sequence[T], weights: Sequence[float]) -> T:
        index = self.rng.choices(range(len(options)), weights)[0]
        self.log_probability += math.log(weights[index] / sum(weights))
        return options[index]


def number_forms(number: int) -> list[str]:
    """Ways to tell a number below 100: digits, words, and how much it is short of the next ten."""
    tens, units = divmod(number, 10)
    return [
        str(number),
        in_words(number),
        *([f"{UNITS[10 - units]} short of {TENS[tens + 1]}"] if units else ()),
    ]


def in_words(number: int) -> str:
    """A number below 100 in words."""
    if number < 20:
        return UNITS[number]
    return TENS[number // 10] + (f"-{UNITS[number % 10]}" if number % 10 else "")


def pronoun(name: str, case: str) -> str:
    women = {"who": "she", "whom": "her", "whose": "her"}
    return women[case] if name in WOMEN else {"who": "he", "whom": "him", "whose": "his"}[case]


VALUES: dict[int | str, tuple[str, ...]] = {
    "start": ("person",), "move": ("passes", "person"), "card": ("person", "number"),
    "compare": ("person", "other", "sign"), "next": ("person", "to"), "left": ("rounds",),
    "answer": ("number",),
}  # fmt: skip
