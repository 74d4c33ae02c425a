"""Text, marks and colours for the records of a trace, used by `chat` and `trace`."""

from dataclasses import dataclass
from typing import Any
from unicodedata import category

Json = dict[str, Any]

STAGES = ("draft", "read", "judge", "write", "wire")
THINK_END = "</think>"


@dataclass(frozen=True, slots=True)
class Mark:
    """How a segment was decided, as sign, colour and word; the word serves readers who cannot see the other two."""

    sign: str
    colour: str
    word: str


ACCEPTED = Mark("✓", "green", "accepted")
REWRITTEN = Mark("✎", "yellow", "rewritten")
BY_TARGET = Mark("✎", "yellow", "by the target")
BY_DRAFT = Mark("·", "default", "by the draft")
REFUSED = Mark("✗", "red", "refused")


def mark_of(record: Json) -> Mark:
    """The mark of a record: accepted or rewritten, or the writer of a segment that was not judged."""
    match record["verdict"]:
        case "accepted":
            return ACCEPTED
        case "rewritten":
            return REWRITTEN
    return BY_TARGET if record["writer"] == "target" else BY_DRAFT


def stage_ms(record: Json, stage: str) -> float:
    """Time the loop waited for a stage; `wire` is the part of the other four outside engines."""
    return float((record.get("times") or {}).get(f"{stage}_ms") or 0.0)


def total_ms(record: Json) -> float:
    """Time of all stages; `wire` is included in the others."""
    return sum(stage_ms(record, stage) for stage in STAGES if stage != "wire")


def judgement(record: Json) -> str:
    """The numbers that decided on a segment, as far as they are known."""
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
    """The text without control characters, which could control the terminal."""
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
