"""Schemas that would take a process down or keep it busy, by name."""

import json
from functools import reduce
from typing import Any

Schema = dict[str, Any]

MANY = {
    "type": "object",
    "properties": {f"p{number}": {"type": "string"} for number in range(1500)},
}
"""It allows many continuations at a token."""


def grammar_of(schema: Any) -> str:
    """What the engines are given for a schema."""
    return f"start: %json {json.dumps(schema)}"


COUNTED: dict[str, tuple[Schema, str]] = {
    "required": (
        {"type": "object", "required": [f"a{i}" for i in range(30_000)]},
        "requires 30000 properties",
    ),
    "required in two": (
        {
            "allOf": [
                {"required": [f"a{i}" for i in range(first, first + 2600)]} for first in (0, 2600)
            ]
        },
        "requires 5200 properties",
    ),
    "properties": ({"properties": {f"p{i}": {} for i in range(5001)}}, "names 5001 properties"),
    "multiples": (
        {"type": "integer", "allOf": [{"multipleOf": one} for one in (9973, 9967, 9949, 9941)]},
        "product of its multipleOf",
    ),
    "large multiple": ({"type": "integer", "multipleOf": 99_730_001}, "product of its multipleOf"),
    "fraction": (
        {"type": "number", "multipleOf": 99.730001},
        "product of its multipleOf is 99730001",
    ),
    "infinity": ({"type": "number", "multipleOf": float("inf")}, "product of its multipleOf is 1e"),
    "400 digits": ({"type": "array", "minItems": 10**400, "multipleOf": 10**400}, "add up to 1e"),
    "items": ({"type": "array", "maxItems": 10**9}, "add up to 1000000000"),
    "items, a float": ({"type": "array", "maxItems": 1e9}, "add up to 1000000000"),
    "balanced": (
        {
            "type": "array",
            "maxItems": 10**9,
            "examples": [{"maxItems": -(10**9)}],
            "const": {"minItems": -(10**9)},
        },
        "add up to 1000000000",
    ),
    "negative": ({"items": {"minItems": -(10**9)}, "minItems": 10**9}, "add up to 1000000000"),
    "pattern": ({"type": "string", "pattern": "x" * 20_001}, "patterns have 20001 characters"),
    "repeated": ({"type": "string", "pattern": "(a{1,9000}){2000}"}, "add up to 11000"),
    "pattern of names": ({"patternProperties": {"^a{20000}": {}}}, "add up to 20000"),
    "values": ({"enum": list(range(20_000))}, "it has 20002 values"),
    "depth": (reduce(lambda inner, _: {"items": inner}, range(400), {}), "deeper than 100"),
    "in a definition": ({"$defs": {"x": {"maxItems": 10**9}}}, "add up to 1000000000"),
    "in a property named default": (
        {"properties": {"default": {"maxItems": 10**9}}},
        "add up to 1000000000",
    ),
}
"""Those that are refused before a compiler sees them, with what is said."""

COSTLY: dict[str, Schema] = {
    "patterns": {"type": "string", "allOf": [{"pattern": f".*[a-z]{{{i}}}x.*"} for i in range(59)]},
    "multiples": {
        "type": "integer",
        "allOf": [{"multipleOf": 97}, {"multipleOf": 101}],
        "pattern": "9" * 50,
    },
}
"""Those whose cost only a compiler finds out; the second is not too much for it."""

HARMLESS: dict[str, Schema] = {
    "not read": {"type": "object", "default": {"maxItems": 10**9}, "examples": [[10**9] * 30_000]},
    "data": {"const": {"maxItems": 10**9, "properties": dict.fromkeys(map(str, range(5001)))}},
    "properties named as keywords": {
        "properties": {"maxItems": {"type": "integer"}, "multipleOf": {}}
    },
    "cents": {"type": "number", "multipleOf": 0.01},
    "small fraction": {"type": "number", "multipleOf": 1e-9},
    "all that OpenAI allows": {
        "type": "object",
        "properties": {f"p{i}": {"type": "string"} for i in range(5000)},
        "required": [f"p{i}" for i in range(5000)],
    },
}
