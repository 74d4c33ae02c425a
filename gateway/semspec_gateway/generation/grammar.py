"""Grammars of what a client asks for: JSON by a schema, text by a regular expression, or calls of tools.

They are texts in llguidance's Lark syntax and define the rule `answer`; `output_grammar` adds the free reasoning.
"""

import json
import re
from collections.abc import Sequence

from semspec.errors import InvalidField
from semspec.grammars.compiler import Compiler
from semspec.reasoning import expected_form, opened_form
from semspec.types import JsonObject
from semspec_gateway.generation.parsers import CALL, END_OF_CALL, beginning_of_call

ANY_OBJECT: JsonObject = {"type": "object"}

_COMPACT = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
"""White space in JSON: none but a space after a separator, since some models go on with it until their budget ends."""

_CHECKED = re.compile(r"^// (\S+)\n\w+: (.+)$", re.MULTILINE)
"""A rule that the client wrote, after a comment with the field of the request."""


async def check_grammar(grammar: str, compiler: Compiler, owner: str) -> None:
    """Raises: InvalidRequest naming the field of the schema or expression that is invalid, is strict and not supported,
    allows no text, or needs too much time or memory; Overloaded."""
    rules = _CHECKED.findall(grammar)
    flaw = await compiler.flaw([f"start: {rule}" for _, rule in rules], owner)
    if flaw is None:
        return
    field, rule = rules[flaw.index or 0]
    if flaw.index is None and len(rules) > 1:
        field = field.partition(".")[0]
    reason = flaw.reason
    if flaw.is_empty:  # as for a schema that is a reference to itself
        reason = "no JSON is valid by it" if rule.startswith("%json") else "no text matches it"
    raise InvalidField(reason, field)


def json_grammar(schema: JsonObject, is_strict: bool, field: str) -> str:
    """JSON that is valid by `schema`. Not `is_strict`: keywords that cannot be held are ignored."""
    return _rule("answer", _json(schema, is_strict), field)


def regex_grammar(regex: str, field: str) -> str:
    """A text that matches `regex` as a whole; no look-around, no references to groups."""
    from llguidance import LLMatcher  # native code, which other requests do without

    escaped = json.loads(LLMatcher.grammar_from_regex(regex))["grammars"][0][
        "lark_grammar"
    ].removeprefix("start: ")
    return _rule("answer", escaped, field)


def tools_grammar(
    functions: Sequence[JsonObject], is_required: bool, is_parallel: bool, fields: Sequence[str]
) -> str:
    """Calls of `functions`, OpenAI's objects, with a text before them or alone unless a call is required.

    Each call has the form that the chat templates of Hermes and Qwen ask for; if none is required, an answer may
    consist of bare calls instead, see `CallParser`. `fields`: the fields of the request that hold their parameters.
    """
    names = [f"call_{index}" for index in range(len(functions))]
    rules = [f"body: {_quoted(chr(10))} ({' | '.join(names)}) {_quoted(chr(10) + END_OF_CALL)}"]
    for name, function, field in zip(names, functions, fields, strict=True):
        parameters = function.get("parameters") or ANY_OBJECT
        rules.append(
            f"{name}: {_quoted(beginning_of_call(function['name']))} {name}_arguments {_quoted('}')}"
        )
        rules.append(
            _rule(
                f"{name}_arguments", _json(parameters, bool(function.get("strict"))), field
            ).rstrip()
        )
    more = f"(/[ \\n]{{1,4}}/? {_quoted(CALL)} body)*" if is_parallel else ""
    if is_required:
        first = [f"answer: {_quoted(CALL)} body {more}"]
    else:  # a lazy trigger ends the free text as soon as it matches, so that every call has the right form
        bare = "bare_call (bare_call)*" if is_parallel else "bare_call"
        first = [
            f"answer: FREE | (trigger body {more} | {bare}) {_END_OF_BLOCK}?",
            "FREE: /(.|\\n)*/",
            f"trigger[lazy]: FREE {_quoted(CALL)}",
            f"bare_call: ({' | '.join(f'bare_{name} (/ /)? {name}_arguments' for name in names)}) {_END_OF_BARE_CALL}",
            *(
                f"bare_{name}[lazy]: {_bare_call(function['name'])}"
                for name, function in zip(names, functions, strict=True)
            ),
        ]
    return "\n".join([*first, *rules]) + "\n"


_END_OF_BARE_CALL, _END_OF_BLOCK = r"/[ \n]{0,8}\}/", r"/[ \n]{0,4}(```)?[ \n]{0,4}/"


def _bare_call(name: str) -> str:
    """The beginning of a call that stands in a text by itself, or in a code block. See `CallParser`."""
    block = r"[ \n]{0,4}(```(json)?[ \n]{1,4})?"
    return (
        rf'/{block}\{{[ \n]{{0,8}}"name": ?{_escaped(json.dumps(name))},[ \n]{{0,8}}"arguments":/'
    )


def output_grammar(grammar: str, prompt: str, may_reason: bool = True) -> str:
    """The grammar of the output after `prompt`, whose answer follows `grammar`.

    Reasoning comes first where the prompt has opened it; elsewhere the model may open it itself if it `may_reason`.
    """
    opened = opened_form(prompt)
    if not (opened or may_reason):
        return f"start: answer\n{grammar}"
    form = opened or expected_form(prompt)
    opening = "" if opened else f"[ \\n]{{0,4}}{_escaped(form.opening)}"
    thought = f"thought[lazy]: /{opening}(.|\\n)*{_escaped(form.answer.rstrip())}/"
    spaced = "spaced: /[ \\n]{1,4}/? answer"
    plain = "" if opened else f" | {f'{_quoted(form.plain)} ' if form.plain else ''}answer"
    return f"start: thought spaced{plain}\n{thought}\n{spaced}\n{grammar}"


def _escaped(literal: str) -> str:
    return re.escape(literal).replace("/", r"\/")


def _rule(name: str, rule: str, field: str) -> str:
    return f"// {field}\n{name}: {rule}\n"


def _json(schema: JsonObject, is_strict: bool) -> str:
    options = {**_COMPACT, "lenient": not is_strict, "coerce_one_of": not is_strict}
    return f"%json {json.dumps({**schema, 'x-guidance': options}, ensure_ascii=False)}"


def _quoted(literal: str) -> str:
    return json.dumps(literal)
