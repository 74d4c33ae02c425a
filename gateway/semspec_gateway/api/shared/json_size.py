"""Counts the contents of a JSON text without parsing it, which is far faster and takes no memory for values."""

from bisect import bisect_left
from dataclasses import dataclass

from pydantic_core import from_json

MAX_NAMES, MAX_NAME_LENGTH = 8, 64
"""Longest path of a field that an error names, and the longest of its names."""

STEP = 1 << 14
"""A field is looked up with this precision, in characters."""


@dataclass(frozen=True, slots=True)
class JsonSize:
    """Contents of a JSON text, or the most that a text may hold. Numbers take less time and memory than the others."""

    strings: int
    """Also the names of members."""
    containers: int
    """Lists and objects."""
    values: int
    """Texts, containers, numbers and constants, without the names of members."""

    def excess(self, limit: "JsonSize") -> str | None:
        """Return the first kind that exceeds `limit`; None if each is within it."""
        kinds = ("strings", "containers", "values")
        return next((kind for kind in kinds if getattr(self, kind) > getattr(limit, kind)), None)


def size_of(text: str, max_strings: int) -> JsonSize:
    """Count quotes, and the commas and opening brackets outside of strings; only quotes for too many strings."""
    unescaped = text.replace("\\\\", "").replace('\\"', "")
    strings = unescaped.count('"') // 2
    if strings > max_strings:
        return JsonSize(strings, 0, 0)
    structure = "".join(unescaped.split('"')[::2])
    containers = structure.count("[") + structure.count("{")
    return JsonSize(strings, containers, structure.count(",") + containers)


def field_beyond(text: str, limit: JsonSize) -> str | None:
    """Return the path of the field in which a text exceeds `limit`; None if the text is not valid."""
    ends = range(0, len(text), STEP)
    num_within = bisect_left(
        ends,
        True,
        key=lambda end: size_of(text[:end], limit.strings).excess(limit) is not None,
    )
    try:
        value = from_json(text[: ends[num_within - 1]], allow_partial=True)
    except ValueError:
        return None
    path = list[str]()
    while isinstance(value, dict) and value and len(path) < MAX_NAMES:
        name, value = value.popitem()
        path.append(name[:MAX_NAME_LENGTH])
    return ".".join(path) or None
