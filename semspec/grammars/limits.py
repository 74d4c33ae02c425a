"""Limits on a client's JSON schema or regular expression, checked before it is compiled."""

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from itertools import islice
from json import JSONDecodeError, JSONDecoder
from typing import Any

MAX_NODES = 20_000
"""Maximum number of values in a schema. The compiler recurses; its stack has room for this many levels."""

MAX_DEPTH = 100
"""Maximum nesting of objects and lists in a schema."""

MAX_NAMES = 5000
"""Maximum number of named properties, as in OpenAI's API: the compiler's time grows with the square of the required
ones."""

MAX_REPETITIONS = 10_000
"""Maximum sum of all numbers of items, properties and repetitions in patterns, with which a grammar grows."""

MAX_PATTERN_CHARACTERS = 20_000
"""Maximum length of all regular expressions together."""

MAX_MULTIPLE = 10_000
"""Maximum product of all `multipleOf`, decimal points left out: an automaton has a state for each remainder."""

LARGEST_NUMBER = 10**18
"""Larger numbers, which may not fit a float, count as this one."""

_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose keys are names or patterns, not keywords."""
_DATA = frozenset({"const", "enum", "required"})
"""Keywords whose values contain no schemas."""
_UNREAD = frozenset({"examples", "default", "title", "description", "$comment", "x-guidance"})
"""Keywords that the compiler does not read."""
_COUNTS = frozenset(
    {"minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains"}
)
_REPEATED = re.compile(r"\{(\d*),?(\d*)\}")


class _Counts:
    """Numbers of what a schema contains so far."""

    def __init__(self) -> None:
        self.num_nodes = self.num_names = self.num_required = self.num_characters = 0
        self.num_repetitions = 0.0
        self.multiple = 1.0

    def add(self, keyword: str, value: Any) -> None:
        """Count a keyword and its value, without schemas inside it. Raises: ValueError when a limit is exceeded."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if keyword in _COUNTS and is_number:
            self.num_repetitions += max(0, min(value, LARGEST_NUMBER))
        elif keyword == "multipleOf" and is_number and value > 0:
            self.multiple *= _coefficient(min(value, LARGEST_NUMBER))
        elif keyword == "properties" and isinstance(value, Mapping):
            self.num_names += len(value)
        elif keyword == "required" and isinstance(value, list):
            self.num_required += len(value)
        elif keyword == "pattern" and isinstance(value, str):
            self.add_pattern(value)
        elif keyword == "patternProperties" and isinstance(value, Mapping):
            for pattern in value:
                self.add_pattern(pattern)
        self.check()

    def add_pattern(self, pattern: str) -> None:
        self.num_characters += len(pattern)
        for numbers in _REPEATED.findall(pattern):
            self.num_repetitions += max(int(digits[:9] or 0) for digits in numbers)

    def check(self) -> None:
        """Raises: ValueError when a limit is exceeded."""
        for number, limit, message in (
            (self.num_nodes, MAX_NODES, "it has {} values"),
            (self.num_names, MAX_NAMES, "it names {} properties"),
            (self.num_required, MAX_NAMES, "it requires {} properties"),
            (self.num_characters, MAX_PATTERN_CHARACTERS, "its patterns have {} characters"),
            (
                self.num_repetitions,
                MAX_REPETITIONS,
                "its numbers of items, properties and repetitions add up to {}",
            ),
            (self.multiple, MAX_MULTIPLE, "the product of its multipleOf is {}"),
        ):
            if number > limit:
                raise ValueError(f"{message.format(f'{number:.15g}')}; the limit is {limit}")


def check_schema(schema: Any) -> None:
    """Check a JSON schema. Raises: ValueError when it is too large or too deep to be compiled."""
    counts = _Counts()
    level: list[tuple[str, Any]] = [("", schema)]
    for _ in range(MAX_DEPTH):
        counts.num_nodes += len(level)
        counts.check()
        for kind, part in level:
            if isinstance(part, Mapping) and kind == "":
                for keyword, value in part.items():
                    counts.add(keyword, value)
        children = (child for kind, part in level for child in _children(kind, part))
        level = list(islice(children, MAX_NODES + 1))
        if not level:
            return
    raise ValueError(f"the schema is nested deeper than {MAX_DEPTH} levels")


def check_pattern(pattern: str) -> None:
    """Check a regular expression. Raises: ValueError when it is too large to be compiled."""
    _Counts().add("pattern", pattern)


def check_grammar(grammar: str) -> None:
    """Apply `check_schema` to each schema in a grammar in llguidance's Lark syntax. Raises: ValueError."""
    for found in re.finditer(r"%json\s*", grammar):
        try:
            schema, _ = JSONDecoder().raw_decode(grammar, found.end())
        except RecursionError:
            raise ValueError(f"a schema is nested deeper than {MAX_DEPTH} levels") from None
        except JSONDecodeError:
            continue  # the compiler reports it
        check_schema(schema)


def _children(kind: str, part: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values in a part of a schema, each with its kind.

    Kinds: "" for a schema or a list of them, "map" for named schemas, "data" for values without schemas.
    """
    if isinstance(part, list):
        yield from ((kind, value) for value in part)
    elif isinstance(part, Mapping) and kind:
        yield from (("" if kind == "map" else kind, value) for value in part.values())
    elif isinstance(part, Mapping):
        kinds = dict.fromkeys(_DATA, "data") | dict.fromkeys(_MAPS, "map")
        yield from (
            (kinds.get(name, ""), value) for name, value in part.items() if name not in _UNREAD
        )


def _coefficient(number: float) -> float:
    """Return `number` without its decimal point, such as 25 for 0.25."""
    _, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    return float(int("".join(map(str, digits)))) * 10.0 ** max(0, int(exponent))
