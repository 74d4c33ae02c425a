"""The way back from text: an exact parser of the wording."""

import re
from collections.abc import Iterator
from typing import cast

from semspec_demo.problems import MEN, WOMEN, Facts
from semspec_demo.solutions import UNREADABLE, Claim, Step
from semspec_demo.wording import (
    ADVERBS,
    PLACEHOLDER,
    SLOTS,
    TEMPLATES,
    UNITS,
    VALUES,
    number_forms,
    pronoun,
)


def read(text: str, facts: Facts, holder: int | None) -> Step:
    """The meaning of a paragraph when `holder` has the ball; `UNREADABLE` where the grammar does not match."""
    text = text.strip("\n ")
    if text.startswith("</think>"):
        match = _PATTERNS["answer"][0].fullmatch(
            text.removeprefix("</think>").strip("\n ").removesuffix(".")
        )
        return Step((("answer", int(match["number"])),)) if match else UNREADABLE
    opener, _, rest = text.partition(" ")
    if opener not in ("So", "No,") or not rest.endswith("."):
        return UNREADABLE
    claims: list[Claim] = []
    for sentence in rest[:-1].split(". "):
        kind, match = _match(sentence)
        values = [_value(name, match, facts, holder) for name in VALUES[kind]] if match else [None]
        if None in values:
            return UNREADABLE
        claims.append(cast(Claim, (kind, *values)))
        holder = int(claims[-1][-1]) if kind in ("start", "move") else holder
    return Step(tuple(claims), opener == "No,") if claims and len(claims) <= 3 else UNREADABLE


def spans(text: str) -> Iterator[tuple[int, int, str]]:
    """Where a paragraph that can be read states these, in characters: start, end, kind and name."""
    offset = text.find(" ") + 1
    for sentence in text[offset:].rstrip(".\n").split(". "):
        kind, match = _match(sentence)
        if match:
            for name in (name for name, value in match.groupdict().items() if value):
                field = {
                    "who": "person",
                    "whom": "person",
                    "whose": "person",
                    "turned": "sign",
                }.get(name, name)
                yield offset + match.start(name), offset + match.end(name), f"{kind}.{field}"
        offset += len(sentence) + 2


def _match(sentence: str) -> tuple[int | str, re.Match[str] | None]:
    """The kind of claim of a sentence without its full stop, and the pattern's groups."""
    for text in (sentence[:1].lower() + sentence[1:], sentence):
        for kind, patterns in _PATTERNS.items():
            for pattern in patterns:
                if kind != "answer" and (match := pattern.fullmatch(text)):
                    return kind, match
    return "left", None


def _value(name: str, match: re.Match[str], facts: Facts, holder: int | None) -> int | str | None:
    groups = match.groupdict()
    if name == "sign":
        is_higher = (groups.get("sign") or groups["turned"]) in SLOTS["higher"]
        return "higher" if is_higher == bool(groups.get("sign")) else "lower"
    if name == "person":
        text = next(groups[case] for case in ("person", "who", "whom", "whose") if groups.get(case))
        return _person_of(text.removesuffix("'s"), facts, holder)
    if name in ("to", "other"):
        return _person_of(groups[name], facts, None)
    if name in ("passes", "rounds"):
        word = groups[name].split(" ")[0]
        return int(word) if word.isdigit() else UNITS.index(word)
    return _NUMBERS.get(groups[name]) if name == "number" else groups[name]


def _person_of(text: str, facts: Facts, holder: int | None) -> int | None:
    if text in facts.names:
        return facts.names.index(text)
    is_his = holder is not None and text in {
        pronoun(facts.names[holder], case) for case in ("who", "whom", "whose")
    }
    return holder if is_his else None


_NUMBERS = {form: number for number in range(10, 100) for form in number_forms(number)}


def _pattern(template: str) -> re.Pattern[str]:
    def fill(match: re.Match[str]) -> str:
        slot, name, adverbs = match.groups()
        if adverbs:
            return f"(?: (?:{'|'.join(ADVERBS)}))" + f"{{0,{len(adverbs)}}}"
        if slot in ("sign", "turned"):
            return f"(?P<{slot}>{'|'.join(sorted(SLOTS['higher'] + SLOTS['lower'], key=len, reverse=True))})"
        if slot:
            return f"(?:{'|'.join(sorted(SLOTS[slot], key=len, reverse=True))})"
        if name in ("who", "whom", "whose", "to", "other", "person"):
            people = "|".join(WOMEN + MEN)
            case = {"who": "|she|he", "whom": "|her|him"}.get(name, "")
            return (
                f"(?P<{name}>(?:{people})'s|her|his)"
                if name == "whose"
                else f"(?P<{name}>{people}{case})"
            )
        if name in ("passes", "rounds"):
            noun = "pass(?:es)?" if name == "passes" else "rounds?"
            return f"(?P<{name}>(?:[0-9]|{'|'.join(UNITS[1:10])}) {noun})"
        return rf"(?P<{name}>.+)"

    return re.compile(PLACEHOLDER.sub(fill, template))


_PATTERNS = {
    kind: [_pattern(template) for template in templates]
    for kind, templates in TEMPLATES.items()
    if kind != "answer"
} | {"answer": [re.compile(rf"(?:{'|'.join(SLOTS['answer'])}) \\boxed\{{(?P<number>[0-9]+)\}}")]}
