"""Counts what a client's schema or regular expression contains before any compiler sees it."""

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from itertools import islice
from json import JSONDecodeError, JSONDecoder
from typing import Any

MAX_NODES = 20_000
"""Maximum number of values in a schema. The compiler recurses; its stack is large enough for so many levels."""

MAX_DEPTH = 100
"""Maximum nesting of objects and lists in a schema."""

MAX_NAMES = 5000
"""Most named properties of all objects, as in OpenAI's API: required ones compile in the square of their number."""

MAX_REPETITIONS = 10_000
"""Maximum sum of the numbers of items and properties and of the repetitions in patterns: a grammar grows with them."""

MAX_PATTERN_CHARACTERS = 20_000
"""Maximum length of all regular expressions together."""

MAX_MULTIPLE = 10_000
"""Maximum product of all `multipleOf`, without decimal points: an automaton has a state for each remainder."""

MOST = 10**18
"""Larger numbers, which a float may not hold, count as this one."""

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


class _Total:
    """What a schema contains so far."""

    def __init__(self) -> None:
        self.num_nodes = self.num_names = self.num_required = self.num_characters = 0
        self.num_repetitions = 0.0
        self.multiple = 1.0

    def add(self, keyword: str, value: Any) -> None:
        """Count a keyword's own part. Raises: ValueError."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if keyword in _COUNTS and is_number:
            self.num_repetitions += max(0, min(value, MOST))
        elif keyword == "multipleOf" and is_number and value > 0:
            self.multiple *= _coefficient(min(value, MOST))
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
        for number, limit, what in (
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
                raise ValueError(f"{what.format(f'{number:.15g}')}; the limit is {limit}")


def check_schema(schema: Any) -> None:
    """Raises: ValueError when a JSON schema is too large or too deep to be compiled."""
    total = _Total()
    level: list[tuple[str, Any]] = [("", schema)]
    for _ in range(MAX_DEPTH):
        total.num_nodes += len(level)
        total.check()
        for kind, part in level:
            if isinstance(part, Mapping) and kind == "":
                for keyword, value in part.items():
                    total.add(keyword, value)
        children = (child for kind, part in level for child in _children(kind, part))
        level = list(islice(children, MAX_NODES + 1))
        if not level:
            return
    raise ValueError(f"the schema is nested deeper than {MAX_DEPTH} levels")


def check_pattern(pattern: str) -> None:
    """Raises: ValueError when a regular expression is too large to be compiled."""
    _Total().add("pattern", pattern)


def check_grammar(grammar: str) -> None:
    """`check_schema` of each schema in a grammar in llguidance's Lark syntax. Raises: ValueError."""
    for found in re.finditer(r"%json\s*", grammar):
        try:
            schema, _ = JSONDecoder().raw_decode(grammar, found.end())
        except RecursionError:
            raise ValueError(f"a schema is nested deeper than {MAX_DEPTH} levels") from None
        except JSONDecodeError:
            continue  # which the compiler reports
        check_schema(schema)


def _children(kind: str, part: Any) -> Iterator[tuple[str, Any]]:
    """The values in a part of a schema. Kinds: "" for a schema or a list of them, "map" for named schemas, "data"."""
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
    """`number` without its decimal point: 25 for 0.25."""
    _, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    return float(int("".join(map(str, digits)))) * 10.0 ** max(0, int(exponent))
