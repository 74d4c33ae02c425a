"""Bodies of nearly the largest size that are costly to refuse."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BODY_BYTES = 1 << 20
"""The gateway's default of `max_body_bytes`."""

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
RESPONSES = "/v1/responses"
GENERATE = "/generate"
TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"
SOUND: Mapping[str, Any] = {
    CHAT: {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
    TEXT: {"prompt": "x", "max_tokens": 1},
    RESPONSES: {"input": "x", "max_output_tokens": 1},
    GENERATE: {"inputs": "x", "parameters": {"max_new_tokens": 1}},
    TOKENIZE: {"inputs": "x"},
    DETOKENIZE: {"tokens": [1]},
}
"""A sound body of each route."""
_HOLE = "@@"
_TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": _HOLE}},
}
_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": _HOLE}}}


@dataclass(frozen=True, slots=True)
class Costly:
    """A route and a body."""

    path: str
    body: bytes


def costly_bodies(num_bytes: int = BODY_BYTES) -> dict[str, Costly]:
    """Return bodies of every kind of field, by what they hold: far too much, or odd JSON."""
    return {**_repeated(num_bytes), **_wide(num_bytes), **_odd(num_bytes)}


def _repeated(num_bytes: int) -> dict[str, Costly]:
    """Return lists of small items where the API has a list."""
    turn = {"role": "user", "content": _HOLE}
    places: dict[str, tuple[str, Any]] = {
        "messages": (CHAT, {"messages": _HOLE}),
        "content": (CHAT, {"messages": [turn]}),
        "tool_calls": (CHAT, {"messages": [{"role": "assistant", "tool_calls": _HOLE}]}),
        "tools": (CHAT, {"tools": _HOLE}),
        "stop": (CHAT, {"stop": _HOLE}),
        "modalities": (CHAT, {"modalities": _HOLE}),
        "logit_bias": (CHAT, {"logit_bias": _HOLE}),
        "metadata": (CHAT, {"metadata": _HOLE}),
        "schema": (CHAT, {"response_format": _SCHEMA}),
        "prompt": (TEXT, {"prompt": _HOLE}),
        "input": (RESPONSES, {"input": _HOLE}),
        "input's content": (RESPONSES, {"input": [turn]}),
        "tokenize messages": (TOKENIZE, {"messages": _HOLE}),
        "tokens": (DETOKENIZE, {"tokens": _HOLE}),
    }
    items = {"numbers": "1", "lists": "[]", "objects": "{}", "texts": '""'}
    return {
        f"{place} of {name}": Costly(path, _filled(path, fields, "[", item, "]", num_bytes))
        for place, (path, fields) in places.items()
        for name, item in items.items()
    }


def _wide(num_bytes: int) -> dict[str, Costly]:
    """Return objects of many members: 60,000 and more."""
    places: dict[str, tuple[str, Any]] = {
        "semspec": (CHAT, {"semspec": _HOLE}),
        "message": (CHAT, {"messages": [_HOLE]}),
        "part": (CHAT, {"messages": [{"role": "user", "content": [_HOLE]}]}),
        "tool": (CHAT, {"tools": [_HOLE]}),
        "biases": (CHAT, {"logit_bias": _HOLE}),
        "variables": (CHAT, {"chat_template_kwargs": _HOLE}),
        "labels": (CHAT, {"metadata": _HOLE}),
        "properties": (CHAT, {"tools": [_TOOL]}),
        "item": (RESPONSES, {"input": [_HOLE]}),
        "parameters": (GENERATE, {"parameters": _HOLE}),
    }
    found = {path: Costly(path, _members(path, _HOLE, num_bytes)) for path in SOUND}
    found |= {
        name: Costly(path, _members(path, fields, num_bytes))
        for name, (path, fields) in places.items()
    }
    return {f"members of {name}": costly for name, costly in found.items()}


def _odd(num_bytes: int) -> dict[str, Costly]:
    """Return texts that are not JSON, or unusual JSON."""
    deep, number = "[" * 900 + "]" * 900, "1" * 4300
    bodies = {
        "open lists": b"[" * num_bytes,
        "open objects": b'{"a":' * (num_bytes // 5),
        "quotes": b'"' * num_bytes,
        "backslashes": b'"' + b"\\" * (num_bytes - 1),
        "no end": _filled(CHAT, {"messages": _HOLE}, "[", "1", "]", num_bytes)[:-1],
        "UTF-16": _filled(CHAT, {"messages": _HOLE}, "[", "1", "]", num_bytes // 2 - 2)
        .decode()
        .encode("utf-16"),
        "not UTF-8": _filled(CHAT, {"messages": _HOLE}, "[", "1", "]", num_bytes)[:-1] + b"\xff",
        "nested lists": _filled(CHAT, {"messages": _HOLE}, "[", deep, "]", num_bytes),
        "long numbers": _filled(CHAT, {"messages": _HOLE}, "[", number, "]", num_bytes),
        "white space": b" " * (num_bytes - 2) + b"{}",
        "one name": _filled(CHAT, _HOLE, "{", '"a": 1', "}", num_bytes),
    }
    return {f"JSON: {name}": Costly(CHAT, body) for name, body in bodies.items()}


def _members(path: str, fields: Any, num_bytes: int) -> bytes:
    """Return a body with as many members as there is room for."""
    members = [f'"{number:x}":1' for number in range(num_bytes // 8)]
    before, after = _around(path, fields)
    room, end = num_bytes - len(before) - len(after) - 2, 0
    while end < len(members) and room > len(members[end]):
        room -= len(members[end]) + 1
        end += 1
    return f"{before}{{{','.join(members[:end])}}}{after}".encode()


def _filled(path: str, fields: Any, begin: str, item: str, end: str, num_bytes: int) -> bytes:
    """Return a body with as many items as there is room for."""
    before, after = _around(path, fields)
    number = (num_bytes - len(before) - len(after) - len(begin) - len(end)) // (len(item) + 1)
    return f"{before}{begin}{','.join([item] * number)}{end}{after}".encode()


def _around(path: str, fields: Any) -> tuple[str, str]:
    """Return the text of a body before and after the place of what is repeated."""
    body = fields if fields == _HOLE else {**SOUND[path], **fields}
    before, _, after = json.dumps(body).partition(json.dumps(_HOLE))
    return before, after
