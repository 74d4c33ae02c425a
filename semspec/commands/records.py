"""Text, marks and colours for the records of a trace, used by `chat`."""

from dataclasses import dataclass
from typing import Any
from unicodedata import category

Json = dict[str, Any]

THINK_END = "</think>"


@dataclass(frozen=True, slots=True)
class Mark:
    """How a segment was decided."""

    sign: str
    colour: str


ACCEPTED = Mark("✓", "green")
BY_TARGET = Mark("✎", "yellow")
BY_DRAFT = Mark("·", "default")
REFUSED = Mark("✗", "red")


def mark_of(record: Json) -> Mark:
    """The mark of a record: accepted, or else its writer's."""
    if record["verdict"] == "accepted":
        return ACCEPTED
    return BY_TARGET if record["writer"] == "target" else BY_DRAFT


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
    forms = {
        "acceptance_rate": "{:.0%} accepted",
        "target_ratio": "{:.0%} written by the target",
        "tokens_per_s": "{:.0f} tokens/s",
        "latency_ms": "{:.0f} ms",
    }
    parts = [form.format(outcome[name]) for name, form in forms.items() if outcome.get(name) is not None]
    parts += [f"fallback: {outcome['fallback']}"] if outcome.get("fallback") else []
    parts += ["degraded: not kept in full"] if outcome.get("degraded") else []
    return " · ".join([*parts, *filter(None, [outcome.get("id")])])
