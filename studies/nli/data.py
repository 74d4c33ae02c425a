"""Training data of the language's NLI model: pairs of steps, and whether the first entails the second."""

import random
import re
from collections.abc import Container, Iterator
from dataclasses import dataclass

from semspec.demo.documents import DELIMITER, Document, valid_next, write_document
from semspec.demo.meaning import Kind, Proposition
from semspec.demo.problems import BOXES, ITEMS, NAMES, SPLITS, make_problem
from semspec.demo.wording import DRAFT_AUTHOR, FIELDS, SLOTS, TARGET_AUTHOR, read

LABELS = ("CONTRADICTION", "NEUTRAL", "ENTAILMENT")
CONTRADICTION, NEUTRAL, ENTAILMENT = range(3)

AUTHORS = (TARGET_AUTHOR, DRAFT_AUTHOR)
PIECE = r" ?[A-Za-z]+| ?[0-9]|</?think>\n*|[^\w\s]|\s"
WORDS = tuple(word for words in SLOTS.values() for text in words for word in re.findall(PIECE, text))
OPPOSITE: dict[Kind, Kind] = {"on": "back", "back": "on", "more": "less", "less": "more"}
_MARK = re.compile(r"«(\w+):([^»]+)»")


@dataclass(frozen=True, slots=True)
class Step:
    """A step's text. `fields` are the character spans (start, end) that state a field of its proposition, or one digit
    of a row."""

    text: str
    meaning: Proposition
    fields: tuple[tuple[int, int, str], ...] = ()

    @property
    def stated(self) -> dict[str, int | str]:
        """Field -> value; the digit of box a in a row is `row.a`."""
        stated = dict(zip(FIELDS.get(self.meaning.kind, ()), self.meaning.values, strict=False))
        pieces = str(stated.get("row", "")).split()
        return stated | {f"row.{box}": piece for box, piece in zip(BOXES, pieces, strict=False)}


@dataclass(frozen=True, slots=True)
class Pair:
    """Two steps after one context, and one of `LABELS`."""

    context: str
    premise: Step
    hypothesis: Step

    @property
    def label(self) -> int:
        if self.premise.text == self.hypothesis.text:
            return ENTAILMENT
        return relation(self.premise.meaning, self.hypothesis.meaning)


def relation(premise: Proposition, hypothesis: Proposition) -> int:
    """Equal propositions entail each other; a change entails the recap of its result, two idle days each of them, a
    row each of its boxes.

    The same kind about the same thing is a contradiction otherwise. What cannot be read entails nothing.
    """
    if "unreadable" in (premise.kind, hypothesis.kind):
        return NEUTRAL
    if premise == hypothesis or hypothesis in _consequences(premise):
        return ENTAILMENT
    is_same_subject = premise.kind == hypothesis.kind and _subject(premise) == _subject(hypothesis)
    return CONTRADICTION if is_same_subject else NEUTRAL


def _subject(step: Proposition) -> list[int | str]:
    return [value for value in step.values if value in NAMES or value in ITEMS]


def _consequences(step: Proposition) -> tuple[Proposition, ...]:
    """What follows from a step without being the same."""
    match step.kind:
        case "change":
            day, _, item, _, _, _, after = step.values
            return (Proposition("recap", (day, item, after)),)
        case "skip":
            return tuple(Proposition("skip", (day, day)) for day in step.values if step.values[0] != step.values[1])
        case "swap" | "on" | "back" | "turn" | "more" | "less" | "set" | "amend":
            return tuple(Proposition("look", (piece[0], int(piece[1:]))) for piece in str(step.values[-1]).split())
    return ()


def pairs(seed: int, contextual: float, held_out: Container[str] = (), num_pairs: int = 4) -> Iterator[Pair]:
    """Pairs at random places of the problem of `seed`, or of a later one where its question is `held_out`.

    A share `contextual` of them stands after the solution so far.
    """
    document = write_document(seed, TARGET_AUTHOR)
    if document.problem.question in held_out:
        yield from pairs(seed + 1_000_000, contextual, held_out, num_pairs)
        return
    rng = random.Random(f"pairs {seed}")
    for _ in range(num_pairs):
        place = rng.randrange(len(document.meanings))
        history = document.meanings[:place]
        options = list(valid_next(document.problem, history))
        context = ""
        if rng.random() < contextual:
            said = [_words(slip(step, rng) if rng.random() < 0.1 else step, rng).text for step in history]
            context = "".join(text + DELIMITER for text in [document.problem.question, *said])
        first, second = _two_steps(options, document, rng)
        if rng.random() < 0.5:
            first, second = second, first
        yield Pair(context, first, second)


def _two_steps(options: list[Proposition], document: Document, rng: random.Random) -> tuple[Step, Step]:
    last = document.problem.last
    meaning = rng.choice(options)
    if rng.random() < 0.4:
        meaning = slip(meaning, rng)
    first, draw = _words(meaning, rng), rng.random()
    if draw < 0.42:
        return first, _words(meaning, rng)
    if draw < 0.68:
        return first, _words(slip(meaning, rng), rng)
    if draw < 0.84:
        original = first if rng.random() < 0.5 else _words(meaning, rng)
        return first, _broken(original, last, rng)
    if draw < 0.88:
        return _broken(first, last, rng), _broken(_words(meaning, rng), last, rng)
    if draw < 0.95:
        return first, _words(rng.choice([*_consequences(meaning), *_causes(meaning, rng)] or options), rng)
    return first, _words(rng.choice([*options, *document.meanings]), rng)


def _causes(step: Proposition, rng: random.Random) -> tuple[Proposition, ...]:
    """Steps that `step` follows from."""
    if step.kind == "skip" and step.values[0] == step.values[1]:
        idle = int(step.values[0])
        return (Proposition("skip", (idle, idle + 1)), Proposition("skip", (idle - 1, idle)))
    if step.kind == "recap":
        day, item, value = step.values
        delta = rng.randint(2, 9)
        return (Proposition("change", (day, rng.choice(NAMES), item, "-", delta, int(value) + delta, value)),)
    return ()


def _words(step: Proposition, rng: random.Random) -> Step:
    """`step` in the wording of either author."""
    author, state = rng.choice(AUTHORS), rng.getstate()
    if step.kind == "skip":
        return Step(author.write(step, rng), step)
    marked = tuple(
        value if name == "operator" else f"«{name}:{value}»"
        for name, value in zip(FIELDS[step.kind], step.values, strict=False)
    )
    text, fields, position = "", list[tuple[int, int, str]](), 0
    rng.setstate(state)
    written = author.write(Proposition(step.kind, marked), rng)
    for match in _MARK.finditer(written):
        text += written[position : match.start()]
        fields += _spans(match[1], match[2], len(text))
        text, position = text + match[2], match.end()
    return Step(text + written[position:], step, tuple(fields))


def _spans(name: str, value: str, start: int) -> Iterator[tuple[int, int, str]]:
    """The character spans of a field that begins at `start`: one, or one for each box of a row."""
    if name != "row":
        yield start, start + len(value), name
        return
    for box, piece in zip(BOXES, re.finditer(r"\S+", value), strict=True):
        yield start + piece.start(), start + piece.end(), f"row.{box}"


def slip(step: Proposition, rng: random.Random) -> Proposition:
    """`step` with one field wrong, sometimes two: a digit, a number copied from elsewhere, an operator, a word."""
    if not step.values or step.kind in ("done", "ready"):
        return step
    values = list(step.values)
    for _ in range(2 if rng.random() < 0.25 else 1):
        index = rng.randrange(len(values))
        values[index] = _other_value(values[index], values, rng)
    if step.kind == "skip" and step.values[0] == step.values[1] and rng.random() < 0.7:
        values = [values[0]] * 2
    if step.kind == "swap":
        values[1:3] = sorted(map(str, values[1:3]))
    if step.kind in OPPOSITE and rng.random() < 0.25:
        return Proposition(OPPOSITE[step.kind], step.values)
    return Proposition(step.kind, tuple(values))


def _other_value(value: int | str, values: list[int | str], rng: random.Random) -> int | str:
    if not isinstance(value, int):
        if " " in value:
            return _other_row(value, rng)
        words = next(words for words in (("+", "-"), NAMES, ITEMS, BOXES) if value in words)
        return rng.choice([word for word in words if word != value])
    near = [value + 1, value - 1, value + 10, value - 10, int(str(value)[::-1])]
    copied = [other for other in values if isinstance(other, int)]
    digits = list(str(value))
    digits[rng.randrange(len(digits))] = str(rng.randrange(10))
    other = rng.choice(rng.choice((near, copied, [int("".join(digits))])))
    return other if 0 <= other != value else value + rng.randint(1, 9)


def _other_row(row: str, rng: random.Random) -> str:
    """A row with one digit changed, or two exchanged."""
    digits = [int(piece[1:]) for piece in row.split()]
    first, second = rng.sample(range(len(digits)), 2)
    if digits[first] != digits[second] and rng.random() < 0.6:
        digits[first], digits[second] = digits[second], digits[first]
    else:
        digits[first] = (digits[first] + rng.choice((1, 9, rng.randint(1, 9)))) % 10
    return " ".join(f"{box}{digit}" for box, digit in zip(BOXES, digits, strict=True))


def _broken(step: Step, last: int, rng: random.Random) -> Step:
    """The step's text with one word or digit changed, lost, doubled, or out of place; it may still make sense."""
    pieces = re.findall(PIECE, step.text)
    digits = [index for index, piece in enumerate(pieces) if piece.strip().isdigit()]
    index = rng.randrange(len(pieces))
    draw = rng.random()
    if draw < 0.45 and digits:
        index = rng.choice(digits)
        pieces[index] = pieces[index][:-1] + str(rng.randrange(10))
    elif draw < 0.6:
        del pieces[index]
    elif draw < 0.7:
        length = rng.randint(1, 5)
        pieces[index:index] = pieces[index : index + length]
    elif draw < 0.85:
        pieces[index] = " " + rng.choice(WORDS).strip()
    elif draw < 0.95:
        other = rng.randrange(len(pieces))
        pieces[index], pieces[other] = pieces[other], pieces[index]
    else:
        del pieces[index:]
    text = "".join(pieces).strip()
    return Step(text, read(text, last))


def held_out_questions() -> frozenset[str]:
    """Questions that are excluded from training pairs."""
    return frozenset(make_problem(seed).question for split in ("probe", "tune", "report") for seed in SPLITS[split])
