"""Wording: renders propositions as text, by authors with different preferences, and parses them.

A kind has templates, a template has `<slots>` filled from a list of synonyms and `{fields}` filled from the
proposition. An author is a set of preferences over both. The reader turns the same grammar into regular expressions.
"""

import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from semspec.demo.meaning import Kind, Proposition
from semspec.demo.problems import BOXES, ITEMS, NAMES

SLOTS: dict[str, tuple[str, ...]] = {
    # ledger
    "on": ("On", "Then on", "Next on", "After that on", "Now on", "Okay on", "Moving to", "For"),
    "gain": ("gets", "gains", "receives", "picks up", "takes in"),
    "lose": ("loses", "drops", "parts with", "gives up", "hands off"),
    "more": ("more", "extra", "new", "further"),
    "of": ("of the", "from the", "out of the"),
    "so": ("so", "thus", "hence", "therefore", "which means"),
    "because": ("because", "since", "as", "given that"),
    "count": ("count", "number", "amount", "tally", "stock"),
    "is": ("is", "becomes", "turns into", "comes to", "equals"),
    "end": (".", " now.", " so far.", " at the moment.", " by then."),
    "first": ("At first", "To begin", "Initially", "First", "To start"),
    "stand": ("number", "stand at", "start at", "come at"),
    "outset": (".", " in hand.", " to start with.", " at the outset."),
    "want": ("We want", "We look for", "The question asks for", "What matters is", "Our goal is"),
    "after": ("after day", "at the end of day", "once we pass day", "by the close of day"),
    "wait": ("Wait", "Hmm", "Hold on", "Let us see"),
    "verify": ("let me check", "let me verify", "I should confirm", "let me recompute"),
    "right": (", yes.", ", right.", ", good.", ", correct."),
    "wrong": ("that is not right", "this is wrong", "I made a mistake", "that was off"),
    "recap": ("To recap", "Summing up", "At this point", "In short"),
    "nothing": ("nothing changes", "there is no effect", "we move past it", "nothing is counted"),
    "here": ("here.", "for this.", "in this case.", "for the question."),
    "done": ("That was the last day", "No day is left", "All days are done", "We are through with the days"),
    "counted": (", all counted.", ", that is all.", ", so we stop.", ", we can answer."),
    "say": ("The answer is", "So the answer is", "We get", "The result is"),
    # boxes
    "aim": ("We follow the row up to", "The task ends with", "All digits matter until", "I track each box through"),
    "open": ("In the opening row", "Before any move", "The given row", "Our first row"),
    "has": ("reads", "shows", "holds", "contains"),
    "move": ("Move", "Step", "In move", "By move", "With move"),
    "swap": ("swaps", "trades", "exchanges", "switches", "flips"),
    "and": ("and", "with", "against"),
    "shift": ("shifts", "pushes", "slides", "carries"),
    "forth": ("on by one", "one box forward", "to the next box", "one place ahead"),
    "back": ("back by one", "one box backward", "to the box before", "one place behind"),
    "turn": ("turns the row round", "reverses all boxes", "mirrors the digits", "reads the boxes backwards"),
    "raise": ("adds", "puts in", "brings", "inserts"),
    "lower": ("takes", "removes", "draws", "pulls out"),
    "into": ("to box", "for box", "at box", "inside box"),
    "out": ("from box", "off box", "out of box", "away from box"),
    "giving": ("giving", "leaving", "which yields", "and the row is", "so we have"),
    "row": (".", " in order.", " from left to right.", " as the row."),
    "look": ("box", "the digit of box", "what stands in box", "the content of box"),
    "amend": ("the row should be", "it must read", "the boxes hold", "we need"),
    "ready": ("No move remains", "The moves are over", "Every move is made", "We used up the moves"),
    "show": (", time to read.", ", the row is final.", ", we join the digits.", ", now put them together."),
}

_GAIN = "{name} <gain> {delta} <more> {item}"
_LOSE = "{name} <lose> {delta} <of> {item}"
_PLUS = "the <count> <is> {before} + {delta} = {after}"
_MINUS = "the <count> <is> {before} - {delta} = {after}"
_DAY = "<on> day {day}, "
_ROW = ", <giving> {row}<row>"

# (kind, operator or None) -> templates. Where two operators share a kind, the words carry the operator.
TEMPLATES: dict[tuple[Kind, str | None], tuple[str, ...]] = {
    ("goal", None): ("<want> the <count> of {item} <after> {last_day}.",),
    ("start", None): ("<first>, the {item} <stand> {value}<outset>",),
    ("skip", None): (
        "<on> day {first_day}, <nothing> <here>",
        "<on> days {first_day} and {last_day}, <nothing> <here>",
    ),
    ("change", "+"): (
        f"{_DAY}{_GAIN}, <so> {_PLUS}<end>",
        f"{_DAY}{_PLUS} <because> {_GAIN}<end>",
        f"{_DAY}<because> {_GAIN}, {_PLUS}<end>",
    ),
    ("change", "-"): (
        f"{_DAY}{_LOSE}, <so> {_MINUS}<end>",
        f"{_DAY}{_MINUS} <because> {_LOSE}<end>",
        f"{_DAY}<because> {_LOSE}, {_MINUS}<end>",
    ),
    ("check", "+"): ("<wait>, <verify>: {left} + {right} = {result}<right>",),
    ("check", "-"): ("<wait>, <verify>: {left} - {right} = {result}<right>",),
    ("fix", "+"): ("<wait>, <wrong>: {left} + {right} = {result}<end>",),
    ("fix", "-"): ("<wait>, <wrong>: {left} - {right} = {result}<end>",),
    ("recap", None): ("<recap>, <after> {day} the <count> of {item} <is> {value}<end>",),
    ("done", None): ("<done><counted>",),
    ("aim", None): ("<aim> move {last_move}.",),
    ("set", None): ("<open> <has> {row}<row>",),
    ("swap", None): (
        f"<move> {{move}} <swap> {{first}} <and> {{second}}{_ROW}",
        f"<move> {{move}} <swap> {{second}} <and> {{first}}{_ROW}",
    ),
    ("on", None): (f"<move> {{move}} <shift> each digit <forth>{_ROW}",),
    ("back", None): (f"<move> {{move}} <shift> each digit <back>{_ROW}",),
    ("turn", None): (f"<move> {{move}} <turn>{_ROW}",),
    ("more", None): (f"<move> {{move}} <raise> {{amount}} <into> {{box}}{_ROW}",),
    ("less", None): (f"<move> {{move}} <lower> {{amount}} <out> {{box}}{_ROW}",),
    ("look", None): ("<wait>, <verify> <look> {box}: {digit}<right>",),
    ("amend", None): ("<wait>, <wrong>, <amend> {row}<row>",),
    ("ready", None): ("<ready><show>",),
    ("answer", None): ("</think>\n<say> \\boxed{{value}}.",),
}

FIELDS: dict[Kind, tuple[str, ...]] = {
    "goal": ("item", "last_day"),
    "start": ("item", "value"),
    "skip": ("first_day", "last_day"),
    "change": ("day", "name", "item", "operator", "delta", "before", "after"),
    "check": ("operator", "left", "right", "result"),
    "fix": ("operator", "left", "right", "result"),
    "recap": ("day", "item", "value"),
    "done": ("last",),
    "aim": ("last_move",),
    "set": ("row",),
    "swap": ("move", "first", "second", "row"),
    "on": ("move", "row"),
    "back": ("move", "row"),
    "turn": ("move", "row"),
    "more": ("move", "amount", "box", "row"),
    "less": ("move", "amount", "box", "row"),
    "look": ("box", "digit"),
    "amend": ("row",),
    "ready": ("last",),
    "answer": ("value",),
}

_TOKEN = re.compile(r"<(\w+)>|\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Habits:
    """How often an author errs, and notices it. Authors are wrong in different ways, as people are."""

    gross: float
    """Share of hard calculations with a gross mistake (`Mistakes.gross`)."""
    near: float
    """Share of calculations with a near miss (`Mistakes.near`)."""
    near_hard: float
    """The same of hard calculations."""
    care: float
    """Share of wrong results that the author corrects in the next step."""


class Author:
    """Preferences over templates and synonyms: geometric weights over a shuffled order, never zero."""

    def __init__(
        self, seed: int, habits: Habits, reverse: bool = False, skew: float = 5.0, floor: float = 0.02
    ) -> None:
        """`reverse` gives the author with the opposite order of preference."""
        self.habits = habits
        self._weights: dict[str, list[float]] = {}
        choices = {name: len(words) for name, words in SLOTS.items()}
        choices |= {str(key): len(templates) for key, templates in TEMPLATES.items()}
        for name, num_choices in choices.items():
            order = list(range(num_choices))
            random.Random(f"{seed} {name}").shuffle(order)  # of its own, so that a new slot changes no other
            if reverse:
                order.reverse()
            weights = [math.exp(-skew * rank / num_choices) for rank in order]
            total = sum(weights)
            self._weights[name] = [(1 - floor) * w / total + floor / num_choices for w in weights]

    def write(self, step: Proposition, rng: random.Random) -> str:
        """One wording of `step`."""
        fields = dict(zip(FIELDS[step.kind], step.values, strict=False))
        operator = str(fields["operator"]) if "operator" in fields else None
        template = self._pick_template(step, operator, rng)

        def fill(match: re.Match[str]) -> str:
            slot, field = match.groups()
            if field:
                return str(fields[field])
            return rng.choices(SLOTS[slot], self._weights[slot])[0] if slot in SLOTS else match.group()

        return _TOKEN.sub(fill, template)

    def _pick_template(self, step: Proposition, operator: str | None, rng: random.Random) -> str:
        templates = TEMPLATES[step.kind, operator]
        if step.kind == "skip":
            return templates[step.values[0] != step.values[1]]
        return rng.choices(templates, self._weights[str((step.kind, operator))])[0]


TARGET_AUTHOR = Author(1, Habits(gross=0.18, near=0.02, near_hard=0.02, care=0.8))
DRAFT_AUTHOR = Author(1, Habits(gross=0.04, near=0.3, near_hard=0.52, care=0.2), reverse=True)


def read(text: str, last: int) -> Proposition:
    """The proposition that a step of a problem with `last` days or moves states; `unreadable` if the grammar does not
    match."""
    text = text.strip("\n")
    for kind, operator, pattern in _PATTERNS:
        if match := pattern.fullmatch(text):
            return Proposition(kind, _values(kind, operator, match.groupdict(), last))
    return Proposition("unreadable", (text,))


def _values(kind: Kind, operator: str | None, fields: dict[str, str], last: int) -> tuple[int | str, ...]:
    if kind in ("done", "ready"):
        return (last,)
    if kind == "skip":
        fields = {"last_day": fields["first_day"]} | fields
    if kind == "swap":
        fields["first"], fields["second"] = sorted((fields["first"], fields["second"]))
    if operator:
        fields["operator"] = operator
    return tuple(int(fields[name]) if fields[name].isdigit() else fields[name] for name in FIELDS[kind])


def _patterns() -> Iterator[tuple[Kind, str | None, re.Pattern[str]]]:
    for (kind, operator), templates in TEMPLATES.items():
        for template in templates:
            yield kind, operator, re.compile(_pattern(template))


def _pattern(template: str) -> str:
    """A regular expression for one template; a repeated field must have the same value."""
    seen: set[str] = set()
    pieces: list[str] = []
    position = 0
    for match in _TOKEN.finditer(template):
        slot, field = match.groups()
        if slot and slot not in SLOTS:
            continue
        pieces.append(re.escape(template[position : match.start()]))
        position = match.end()
        if slot:
            words = sorted(SLOTS[slot], key=len, reverse=True)
            pieces.append(f"(?:{'|'.join(map(re.escape, words))})")
        elif field in seen:
            pieces.append(f"(?P={field})")
        else:
            seen.add(field)
            pieces.append(f"(?P<{field}>{_FIELD_PATTERNS.get(field, '[0-9]+')})")
    return "".join([*pieces, re.escape(template[position:])])


_BOX = f"[{''.join(BOXES)}]"
_FIELD_PATTERNS = {
    "item": "|".join(ITEMS),
    "name": "|".join(NAMES),
    "row": " ".join(f"{box}[0-9]" for box in BOXES),
    **dict.fromkeys(("first", "second", "box"), _BOX),
}
_PATTERNS = tuple(_patterns())


def vocabulary_texts() -> Iterator[str]:
    """Texts that together contain every word of the grammar."""
    for words in SLOTS.values():
        yield from words
        yield from (f" {word}" for word in words)
    for templates in TEMPLATES.values():
        for template in templates:
            yield _TOKEN.sub(lambda match: match.group() if match[1] and match[1] not in SLOTS else " ", template)
