"""A trace's records in words, marks and colours: the same in `chat` and in `trace`."""

from dataclasses import dataclass
from typing import Any
from unicodedata import category

Json = dict[str, Any]

STAGES = ("draft", "read", "judge", "write", "wire")
THINK_END = "</think>"


@dataclass(frozen=True, slots=True)
class Mark:
    """How a segment came to be kept: a sign, a colour, and a word so that neither stands alone."""

    sign: str
    colour: str
    word: str


ACCEPTED = Mark("✓", "green", "accepted")
REWRITTEN = Mark("✎", "yellow", "rewritten")
BY_TARGET = Mark("✎", "yellow", "by the target")
BY_DRAFT = Mark("·", "default", "by the draft")
REFUSED = Mark("✗", "red", "refused")


def mark_of(record: Json) -> Mark:
    """Accepted or rewritten; of a segment that was not judged, who wrote it."""
    match record["verdict"]:
        case "accepted":
            return ACCEPTED
        case "rewritten":
            return REWRITTEN
    return BY_TARGET if record["writer"] == "target" else BY_DRAFT


def stage_ms(record: Json, stage: str) -> float:
    """Time the loop waited for a stage; of `wire`, the part of all four that no engine spent."""
    return float((record.get("times") or {}).get(f"{stage}_ms") or 0.0)


def total_ms(record: Json) -> float:
    """Of all stages; `wire` is a part of them."""
    return sum(stage_ms(record, stage) for stage in STAGES if stage != "wire")


def judgement(record: Json) -> str:
    """What decided about a segment, as far as it is known."""
    parts = {
        "q": record.get("draft_probability"),
        "p": record.get("target_probability"),
        "p/q": record.get("ratio"),
        "draw": record.get("draw"),
        "score": record.get("score"),
    }
    words = [f"{name} {value:.3g}" for name, value in parts.items() if value is not None]
    return "  ".join([*words, *([record["fallback"]] if record.get("fallback") else [])])


def printable(text: str) -> str:
    """Without control characters, by which a model might move a terminal's cursor or more."""
    return "".join(character for character in text if character in "\n\t" or category(character) != "Cc")


def one_line(text: str) -> str:
    """A segment's text without its line breaks and other control characters."""
    return " ".join(printable(text).split())


def statistics(outcome: Json) -> str:
    """A response's `semspec` object in one line."""
    parts = (
        _percent(outcome.get("acceptance_rate"), "accepted"),
        _percent(outcome.get("target_ratio"), "written by the target"),
        _number(outcome.get("tokens_per_s"), "{:.0f} tokens/s"),
        _number(outcome.get("latency_ms"), "{:.0f} ms"),
        f"fallback: {outcome['fallback']}" if outcome.get("fallback") else "",
        "degraded: not kept in full" if outcome.get("degraded") else "",
        str(outcome.get("id") or ""),
    )
    return " · ".join(part for part in parts if part)


def _percent(share: float | None, of: str) -> str:
    return "" if share is None else f"{share:.0%} {of}"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)
