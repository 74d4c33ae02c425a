"""Training data of the demo language's NLI model: pairs of steps, and whether the first entails the second."""

import random
import re
from collections.abc import Container, Iterator
from dataclasses import dataclass

from semspec.demo.documents import DELIMITER, Document, write_document
from semspec.demo.meaning import Proposition, valid_next
from semspec.demo.problems import ITEMS, NAMES, SPLITS, make_problem
from semspec.demo.tokenizer import PIECE
from semspec.demo.wording import DRAFT_AUTHOR, FIELDS, SLOTS, TARGET_AUTHOR, read

LABELS = ("CONTRADICTION", "NEUTRAL", "ENTAILMENT")
CONTRADICTION, NEUTRAL, ENTAILMENT = range(3)

AUTHORS = (TARGET_AUTHOR, DRAFT_AUTHOR)
WORDS = tuple(word for words in SLOTS.values() for text in words for word in re.findall(PIECE, text))
_MARK = re.compile(r"«(\w+):(\w+)»")


@dataclass(frozen=True, slots=True)
class Step:
    """A step's text. `fields` are the character spans (start, end) that state a field of its proposition."""

    text: str
    meaning: Proposition
    fields: tuple[tuple[int, int, str], ...] = ()

    @property
    def stated(self) -> dict[str, int | str]:
        """Field -> value."""
        return dict(zip(FIELDS.get(self.meaning.kind, ()), self.meaning.values, strict=False))


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
    """Equal propositions entail each other, a change the recap of its result, two idle days each of them.

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
    if step.kind == "change":
        day, _, item, _, _, _, after = step.values
        return (Proposition("recap", (day, item, after)),)
    if step.kind == "skip":
        return tuple(Proposition("skip", (day, day)) for day in step.values if step.values[0] != step.values[1])
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
        history = list(document.meanings[:place])
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
    last_day = len(document.problem.events)
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
        return first, _broken(original, last_day, rng)
    if draw < 0.88:
        return _broken(first, last_day, rng), _broken(_words(meaning, rng), last_day, rng)
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
    names = FIELDS[step.kind]
    marked = tuple(
        value if name == "operator" else f"«{name}:{value}»" for name, value in zip(names, step.values, strict=False)
    )
    text, fields, position = "", [], 0
    rng.setstate(state)
    written = author.write(Proposition(step.kind, marked), rng)
    for match in _MARK.finditer(written):
        text += written[position : match.start()]
        fields.append((len(text), len(text) + len(match[2]), match[1]))
        text, position = text + match[2], match.end()
    return Step(text + written[position:], step, tuple(fields))


def slip(step: Proposition, rng: random.Random) -> Proposition:
    """`step` with one field wrong, sometimes two: a digit, a number copied from elsewhere, an operator, a word."""
    if not step.values or step.kind == "done":
        return step
    values = list(step.values)
    for _ in range(2 if rng.random() < 0.25 else 1):
        index = rng.randrange(len(values))
        values[index] = _other_value(values[index], values, rng)
    if step.kind == "skip" and step.values[0] == step.values[1] and rng.random() < 0.7:
        values = [values[0]] * 2
    return Proposition(step.kind, tuple(values))


def _other_value(value: int | str, values: list[int | str], rng: random.Random) -> int | str:
    if not isinstance(value, int):
        words = next(words for words in (("+", "-"), NAMES, ITEMS) if value in words)
        return rng.choice([word for word in words if word != value])
    near = [value + 1, value - 1, value + 10, value - 10, int(str(value)[::-1])]
    copied = [other for other in values if isinstance(other, int)]
    digits = list(str(value))
    digits[rng.randrange(len(digits))] = str(rng.randrange(10))
    other = rng.choice(rng.choice((near, copied, [int("".join(digits))])))
    return other if 0 <= other != value else value + rng.randint(1, 9)


def _broken(step: Step, last_day: int, rng: random.Random) -> Step:
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
    return Step(text, read(text, last_day))


def held_out_questions() -> frozenset[str]:
    """Questions that are excluded from training pairs."""
    return frozenset(make_problem(seed).question for split in ("probe", "tune", "report") for seed in SPLITS[split])
