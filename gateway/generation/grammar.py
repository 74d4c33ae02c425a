"""Grammars of what a client asks for: JSON by a schema, text by a regular expression, or calls of tools.

They are texts in llguidance's Lark syntax and define the rule `answer`; `of_output` makes them those of a whole output,
whose reasoning is free.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from semspec.errors import InvalidRequest
from semspec.gateway.generation.parsers import CALL, END_OF_CALL, THINK, beginning_of_call

Json = Mapping[str, Any]

ANY_OBJECT: Json = {"type": "object"}

MAX_REPETITIONS = 10_000
"""Maximum sum of the numbers of items and properties in a schema: its grammar grows with them."""

MAX_PROPERTIES = 5000
"""Maximum number of named properties in a schema, as in OpenAI's API: the time to compile an object grows with their
square, and 20,000 take a minute."""

_COUNTS = ("minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains")

_COMPACT = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
"""White space in JSON: none but a space after a separator, since some models go on with it until their budget ends."""

_ABOUT = re.compile(
    r"at 1\(8\): (failed to compile JSON schema: |invalid regex .*\(in regex\): (.*\nerror: )?)?", re.DOTALL
)
"""What the library's errors say before the reason: a place in the rule, and the whole regular expression."""


def json_grammar(schema: Json, is_strict: bool, field: str) -> str:
    """JSON that is valid by `schema`. Not `is_strict`: keywords that cannot be held are ignored.

    Raises: InvalidRequest naming `field` when the schema is invalid, or strict and not supported.
    """
    return f"answer: {_json_rule(schema, is_strict, field)}\n"


def regex_grammar(regex: str, field: str) -> str:
    """A text that matches `regex` as a whole; no look-around, no references to groups.

    Raises: InvalidRequest naming `field` when the expression is invalid or not supported, or matches no text.
    """
    from llguidance import LLMatcher

    escaped = json.loads(LLMatcher.grammar_from_regex(regex))["grammars"][0]["lark_grammar"].removeprefix("start: ")
    _check_rule(escaped, field, "no text matches it")
    return f"answer: {escaped}\n"


def tools_grammar(functions: Sequence[Json], is_required: bool, is_parallel: bool, fields: Sequence[str]) -> str:
    """Calls of `functions`, OpenAI's objects, with a text before them or alone unless a call is required.

    Each call has the form that the chat templates of Hermes and Qwen ask for. Raises: InvalidRequest naming the one of
    `fields` whose parameters cannot be held.
    """
    names = [f"call_{index}" for index in range(len(functions))]
    rules = [f"body: {_quoted(chr(10))} ({' | '.join(names)}) {_quoted(chr(10) + END_OF_CALL)}"]
    for name, function, field in zip(names, functions, fields, strict=True):
        parameters = function.get("parameters") or ANY_OBJECT
        rules.append(f"{name}: {_quoted(beginning_of_call(function['name']))} {name}_arguments {_quoted('}')}")
        rules.append(f"{name}_arguments: {_json_rule(parameters, bool(function.get('strict')), field)}")
    more = f"(/[ \\n]{{1,4}}/? {_quoted(CALL)} body)*" if is_parallel else ""
    if is_required:
        first = [f"answer: {_quoted(CALL)} body {more}"]
    else:  # a lazy trigger ends the free text as soon as it matches, so that every call has the right form
        first = [f"answer: FREE | trigger body {more}", "FREE: /(.|\\n)*/", f"trigger[lazy]: FREE {_quoted(CALL)}"]
    return "\n".join([*first, *rules]) + "\n"


def of_output(grammar: str, prompt: str, may_reason: bool = True) -> str:
    """The grammar of the output after `prompt`, whose answer follows `grammar`; empty if that is.

    Reasoning comes first where the prompt has opened it; elsewhere the model may open it itself if it `may_reason`.
    """
    is_open = prompt.rstrip().endswith(THINK)
    if not grammar:
        return ""
    if not (is_open or may_reason):
        return f"start: answer\n{grammar}"
    mark = "" if is_open else f"[ \\n]{{0,4}}{THINK}"
    rules = f"thought[lazy]: /{mark}(.|\\n)*<\\/think>/\nspaced: /[ \\n]{{1,4}}/? answer\n{grammar}"
    return f"start: thought spaced{' | answer' if mark else ''}\n{rules}"


def _json_rule(schema: Json, is_strict: bool, field: str) -> str:
    """JSON by `schema`, as a part of a rule. Raises: InvalidRequest."""
    if (repetitions := sum(_repetitions(schema))) > MAX_REPETITIONS:
        message = f"{field}: its numbers of items and properties add up to {repetitions}"
        raise InvalidRequest(f"{message}; the limit is {MAX_REPETITIONS}", field)
    if (properties := sum(_properties(schema))) > MAX_PROPERTIES:
        raise InvalidRequest(f"{field}: it names {properties} properties; the limit is {MAX_PROPERTIES}", field)
    options = {**_COMPACT, "lenient": not is_strict, "coerce_one_of": not is_strict}
    rule = f"%json {json.dumps({**schema, 'x-guidance': options})}"
    _check_rule(rule, field, "no JSON is valid by it")
    return rule


def _check_rule(rule: str, field: str, empty: str) -> None:
    """Raises: InvalidRequest naming `field` when the part of a rule is invalid, or, with the words `empty`, allows no
    text."""
    from llguidance import LLMatcher, LLTokenizer  # native code, which other requests do without

    is_error, messages = LLMatcher.validate_grammar_with_warnings(f"start: {rule}")
    if is_error:
        reason = _ABOUT.sub("", messages[0].partition("\n   1 |")[0])
        raise InvalidRequest(f"{field}: {' '.join(reason.split())[:300]}", field)
    matcher = LLMatcher(LLTokenizer("byte"), f"start: {rule}", log_level=0)
    matcher.compute_bitmask()
    if matcher.is_error():  # as for a schema that is a reference to itself
        raise InvalidRequest(f"{field}: {empty}", field)


def _repetitions(schema: Any) -> Iterator[int]:
    """The counts of items and properties in a schema, wherever they stand."""
    if isinstance(schema, Mapping):
        yield from (schema[name] for name in _COUNTS if isinstance(schema.get(name), int))
    for value in schema.values() if isinstance(schema, Mapping) else schema if isinstance(schema, list) else ():
        yield from _repetitions(value)


def _properties(schema: Any) -> Iterator[int]:
    """The number of properties that each object in a schema names."""
    if isinstance(schema, Mapping) and isinstance(named := schema.get("properties"), Mapping):
        yield len(named)
    for value in schema.values() if isinstance(schema, Mapping) else schema if isinstance(schema, list) else ():
        yield from _properties(value)


def _quoted(literal: str) -> str:
    return json.dumps(literal)
