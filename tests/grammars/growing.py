"""JSON that grows: schemas, texts, Lark grammars and lists of any size, and schemas with every keyword.

What is grown stands in a value as `{"$grown": [kind, size]}` or `{"$many": [item, size]}`, so that the value stays
small; `written` puts the text there.
"""

import json
import re
from collections.abc import Callable
from random import Random
from typing import Any

from tests.security.support import ODD_JSON

Grow = Callable[[int], str]
MOST_BYTES = 1_000_000
"""A gateway reads little more."""


def many(head: str, item: str, tail: str, joint: str = ",") -> Grow:
    """So many items, `@` in each replaced by its number."""
    return lambda size: f"{head}{joint.join(item.replace('@', str(i)) for i in range(size))}{tail}"


def deep(begin: str, end: str, inner: str = "{}") -> Grow:
    return lambda size: begin * size + inner + end * size


def sized(text: str) -> Grow:
    """`@` replaced by the size, a part in `<>` repeated as often."""
    parts = re.split("[<>]", text)
    return lambda size: "".join(
        part * (size if i % 2 else 1) for i, part in enumerate(parts)
    ).replace("@", str(size))


SCHEMAS: dict[str, Grow] = {
    "enum": many('{"enum":[', '"v@"', "]}"), "const": deep('{"const":[', "]}", ""),
    "properties": many('{"type":"object","properties":{', '"p@":{"type":"string"}', "}}"),
    "required": many('{"type":"object","required":[', '"p@"', "]}"),
    "additional": many('{"type":"object","additionalProperties":false,"properties":{', '"p@":{}', "}}"),
    "patterns of names": many('{"type":"object","patternProperties":{', '"^p@":{"type":"integer"}', "}}"),
    "dependent": many('{"type":"object","dependentRequired":{', '"p@":["q@"]', "}}"),
    "allOf": many('{"allOf":[', '{"pattern":".*[a-z]{@}x.*","type":"string"}', "]}"),
    "multiples": many('{"type":"integer","allOf":[', '{"multipleOf":1@7}', "]}"),
    "anyOf": many('{"anyOf":[', '{"type":"string","const":"a@"}', "]}"),
    "oneOf": many('{"oneOf":[', '{"type":"object","properties":{"t":{"const":@}},"required":["t"]}', "]}"),
    "prefixItems": many('{"type":"array","prefixItems":[', '{"type":"integer","minimum":@}', "]}"),
    "recursive": many('{"$ref":"#/$defs/a","$defs":{"a":{"anyOf":[', '{"maxItems":@,"items":{"$ref":"#"}}', "]}}}"),
    "items": deep('{"type":"array","items":', "}"), "objects": deep('{"type":"object","properties":{"a":', "}}"),
    "not": deep('{"not":', "}"), "if": deep('{"if":{},"then":', "}"), "null": deep('{"anyOf":[{"type":"null"},', "]}"),
    "minItems": sized('{"type":"array","minItems":@,"items":{"type":"integer"}}'),
    "maxItems": sized('{"type":"array","maxItems":@,"items":{"type":"array","maxItems":@}}'),
    "minLength": sized('{"type":"string","minLength":@,"maxLength":@}'),
    "minProperties": sized('{"type":"object","minProperties":@}'), "minimum": sized('{"minimum":1<0>}'),
    "fraction": sized('{"type":"number","multipleOf":0.<0>1}'), "pattern": sized('{"type":"string","pattern":"<ab?>"}'),
    "alternatives": many('{"type":"string","pattern":"(', "|w@", ')+"}', ""),
    "groups": sized('{"type":"string","pattern":"<(>a<)*>"}'), "class": sized('{"pattern":"[^<\u4e2d>]+"}'),
    "repeated": sized('{"type":"string","pattern":"((a{1,@})b{0,@}){2,@}"}'),
    "description": sized('{"description":"<d>"}'),
    "name": sized('{"type":"object","properties":{"<n>":{}},"required":["<n>"]}'),
}  # fmt: skip
"""By what grows."""
TEXTS: dict[str, Grow] = {
    "letters": sized('"<a>"'), "words": sized('"<a b >"'), "digits": sized('"<7>"'), "lines": sized('"<\\n>"'),
    "special": sized('"<\\u003c|im_end|\\u003e>"'), "accents": sized('"e<\u0301>"'),
    "emoji": sized('"<\U0001f469\u200d>"'),
    "template": sized('"<{{ 7 * 7 }}>"'), "thought": sized('"<\\u003c/think\\u003e>"'),
}  # fmt: skip
"""By what repeats."""
LARKS: dict[str, Grow] = {
    "groups": sized('"start: <(>\\"a\\"<)>"'), "alternatives": many('"start: ', "/w@/", '"', " | "),
    "rules": many('"start: a0', '\\na@: \\"a\\" a@', '"', ""), "expression": sized('"start: /(<a?><a>)+/"'),
    "repeated": sized('"start: \\"ab\\"{1,@}"'),
}  # fmt: skip
"""Grammars of llguidance by what grows."""
OTHERS: dict[str, Grow] = {
    "by name": many("{", '"k@":"v"', "}"), "biases": many("{", '"@":1.5', "}"), "deep": deep("[", "]", ""),
    "deep objects": deep('{"a":', "}"), "digits": sized("<9>"), "numbers": many("[", "@", "]"),
    "tools": many("[", '{"type":"function","function":{"name":"f@","parameters":{"type":"object"}}}', "]"),
}  # fmt: skip
_KINDS = {"schema": SCHEMAS, "text": TEXTS, "lark": LARKS, "other": OTHERS}
GROWN = {f"{kind}: {name}": grow for kind, kinds in _KINDS.items() for name, grow in kinds.items()}


def written(value: Any) -> str:
    """JSON, with everything grown in full, as far as a gateway reads it."""
    match value:
        case {"$grown": [kind, size]}:
            return GROWN[kind](min(size, MOST_BYTES * 100 // len(GROWN[kind](100))))
        case {"$many": [item, size]}:
            one = written(item)
            return f"[{','.join([one] * min(size, MOST_BYTES // len(one)))}]"
        case dict():
            return f"{{{','.join(f'{json.dumps(name)}:{written(part)}' for name, part in value.items())}}}"
        case list():
            return f"[{','.join(map(written, value))}]"
    return json.dumps(value)


WORDS = ("a", "b1", "", "\u4e2d\n")
NUMBERS = (-1, 0, 1, 2, 40, 10**9, 2**31, 0.5, 1e-9, 1e308, "3", None)
CHOICES: dict[str, tuple[Any, ...]] = {
    "type": ("object", "array", "string", "integer", "number", "boolean", "null", "objekt"), "title": WORDS,
    "format": ("date-time", "uuid", "email", "ipv6", "uri", "regex", "nonsense"), "uniqueItems": (True, False),
    "pattern": ("^a+$", "(a|b)*c", "[0-9]{2,4}", "(?=x)y", "\\bz", "(a+)+$", "(", "\\p{L}", ".{0,300}", ""),
    "$ref": ("#", "#/$defs/a", "#/properties/a", "#/nowhere", "http://127.0.0.1:9/x", "#a"), "x-else": WORDS,
    "const": ODD_JSON, "default": ODD_JSON,
}  # fmt: skip
_NAMES = {
    "number": "minLength maxLength minItems maxItems minProperties maxProperties minimum maximum exclusiveMinimum "
              "exclusiveMaximum multipleOf minContains maxContains",
    "schema": "items additionalProperties not if then else contains propertyNames unevaluatedItems "
              "unevaluatedProperties",
    "schemas": "allOf anyOf oneOf prefixItems", "by name": "properties patternProperties $defs dependentSchemas",
    "words": "required enum", "words by name": "dependentRequired", "choice": " ".join(CHOICES),
}  # fmt: skip
KEYWORDS = {name: kind for kind, names in _NAMES.items() for name in names.split()}
"""Every keyword, with the kind of its value."""


def schema(chance: Random, keyword: str = "", depth: int = 0) -> Any:
    """A JSON schema of any keywords and of this one, some of them wrong."""
    if depth > 3:
        return chance.choice((True, False, {}))

    def value(name: str) -> Any:
        words = chance.sample(WORDS, chance.randint(0, 3))
        match KEYWORDS[name]:
            case "number":
                return chance.choice(NUMBERS)
            case "schema":
                return schema(chance, depth=depth + 1)
            case "schemas":
                return [schema(chance, depth=depth + 1) for _ in words]
            case "by name":
                return {word: schema(chance, depth=depth + 1) for word in words}
            case "words by name":
                return dict.fromkeys(words, words)
            case "choice":
                return chance.choice(CHOICES[name])
        return words

    names = {keyword} - {""} | set(chance.sample(list(KEYWORDS), chance.randint(0, 3)))
    return {name: value(name) for name in sorted(names)}
