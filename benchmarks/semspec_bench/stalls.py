"""Measures how long a request stops the gateway's event loop: `python -m semspec_bench.stalls`.

While a body of each costly kind is sent to the bundled stack, another client asks for `/health` all the time.
Its longest wait is the longest stand-still of the event loop, plus what the machine's other work adds.
"""

import argparse
import asyncio
import http.client
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import monotonic, sleep
from typing import Any

from semspec.reporting.document import Table
from semspec.stack import Stack, StackConfig

RESULTS = Path("benchmarks/results/stalls")
MAX_STALL_MS = 50.0
"""Longest stand-still that any body may cause."""
BODY_BYTES = 1 << 20
"""The gateway's default of `max_body_bytes`."""
PAUSE_S = 0.002
SETTLE_S = 0.1
"""Time after a response in which a wait still counts: values are freed."""
QUIET = "nothing"

CHAT, TEXT, RESPONSES, GENERATE = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/generate",
)
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
_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": _HOLE}}
_TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": _HOLE}},
}
_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": _HOLE}}


@dataclass(frozen=True, slots=True)
class Costly:
    """A body of nearly the largest size that is costly to answer or to refuse."""

    path: str
    body: bytes


def costly_bodies(num_bytes: int = BODY_BYTES) -> dict[str, Costly]:
    """Return bodies of every kind of field, by what they hold: far too much, as much as allowed, and odd JSON."""
    return {**_repeated(num_bytes), **_wide(num_bytes), **_allowed(num_bytes), **_odd(num_bytes)}


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
        "schema": (
            CHAT,
            {
                "response_format": {
                    **_SCHEMA,
                    "json_schema": {"name": "x", "schema": {"enum": _HOLE}},
                }
            },
        ),
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


def _allowed(num_bytes: int) -> dict[str, Costly]:
    """Return the most that each kind of field may hold."""
    message, part = {"role": "user", "content": "x"}, {"type": "text", "text": "x"}
    ids = [123456] * (num_bytes // 7 - 100)
    properties = {f"p{number}": {"type": "string"} for number in range(5000)}
    arguments = json.dumps({"a": [1] * 49_000})
    texts = {"letters": "x", "commas": ",", "quotes": '"', "breaks": "\n", "emoji": "🦊"}
    bodies: dict[str, tuple[str, Any]] = {
        "2,048 messages": (CHAT, {"messages": [message] * 2048}),
        "2,048 parts": (CHAT, {"messages": [{"role": "user", "content": [part] * 2048}]}),
        "2,048 calls": (
            CHAT,
            {"messages": [{"role": "assistant", "tool_calls": [_called("{}")]}] * 2048},
        ),
        "2,048 items": (RESPONSES, {"input": [message] * 2048}),
        "arguments": (
            CHAT,
            {"messages": [{"role": "assistant", "tool_calls": [_called(arguments)] * 7}]},
        ),
        "token ids": (TEXT, {"prompt": ids}),
        "lists of token ids": (TEXT, {"prompt": [ids[:18_000]] * 8}),
        "ids to detokenize": (DETOKENIZE, {"tokens": ids}),
        "properties": (
            CHAT,
            {"response_format": _with_schema({"type": "object", "properties": properties})},
        ),
        "description": (
            CHAT,
            {"response_format": _with_schema({"description": "x" * (num_bytes - 500)})},
        ),
        "pattern": (
            GENERATE,
            {"parameters": {"grammar": {"type": "regex", "value": "(a|b)" * 4000}}},
        ),
        "schema as a text": (
            GENERATE,
            {"parameters": {"grammar": {"type": "json", "value": arguments}}},
        ),
        **{
            f"chat of {name}": (CHAT, _of_text(CHAT, text, num_bytes))
            for name, text in texts.items()
        },
        **{
            f"text to {path}": (path, _of_text(path, "word ", num_bytes))
            for path in (TEXT, RESPONSES, GENERATE, TOKENIZE)
        },
    }
    return {
        name: Costly(path, _compact({**SOUND[path], **fields}).encode())
        for name, (path, fields) in bodies.items()
    }


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


def _compact(body: Any) -> str:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))


def _called(arguments: str) -> Any:
    return {**_CALL, "function": {"name": "f", "arguments": arguments}}


def _with_schema(schema: Any) -> Any:
    return {**_SCHEMA, "json_schema": {"name": "x", "schema": schema}}


def _of_text(path: str, text: str, num_bytes: int) -> Any:
    size = len(json.dumps(text, ensure_ascii=False).encode()) - 2
    long = text * ((num_bytes - 1000) // size)
    if path == CHAT:
        return {"messages": [{"role": "user", "content": long}]}
    return {{TEXT: "prompt", RESPONSES: "input"}.get(path, "inputs"): long}


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


@dataclass(slots=True)
class Waits:
    """Seconds that a client waited for `/health`, by the time at which it began."""

    begun: list[float] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)

    def longest_ms(self, since: float) -> float:
        """Longest wait of requests that ended after `since`."""
        ended = zip(self.begun, self.waits_s, strict=False)
        return 1e3 * max(
            (wait_s for begin, wait_s in ended if begin + wait_s >= since), default=0.0
        )


@contextmanager
def asking(address: str) -> Iterator[Waits]:
    """Ask for `/health` all the time, in a thread."""
    waits, is_over = Waits(), threading.Event()

    def ask() -> None:
        connection = http.client.HTTPConnection(address, timeout=60)
        while not is_over.wait(PAUSE_S):
            begin = monotonic()
            connection.request("GET", "/health")
            connection.getresponse().read()
            waits.begun.append(begin)
            waits.waits_s.append(monotonic() - begin)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    try:
        yield waits
    finally:
        is_over.set()
        thread.join()


@dataclass(frozen=True, slots=True)
class Measured:
    """One body's answers."""

    name: str
    path: str
    statuses: Sequence[int]
    answer_ms: float
    stalls_ms: Sequence[float]

    @property
    def row(self) -> list[str]:
        """Cells of the table."""
        statuses = ", ".join(map(str, sorted({*self.statuses})))
        numbers = (self.answer_ms, median(self.stalls_ms), max(self.stalls_ms))
        return [self.name, self.path, statuses, *(f"{number:.0f}" for number in numbers)]


def measure(name: str, costly: Costly, address: str, key: str, times: int) -> Measured:
    """Send a body several times."""
    statuses, durations_ms, stalls_ms = list[int](), list[float](), list[float]()
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    with asking(address) as waits:
        for _ in range(times):
            sleep(SETTLE_S)
            begin = monotonic()
            if name != QUIET:
                connection = http.client.HTTPConnection(address, timeout=120)
                connection.request("POST", costly.path, costly.body, headers)
                statuses.append(connection.getresponse().status)
                connection.close()
            durations_ms.append(1e3 * (monotonic() - begin))
            sleep(SETTLE_S)
            stalls_ms.append(waits.longest_ms(begin))
    return Measured(name, costly.path, statuses, median(durations_ms), stalls_ms)


def page(measured: Sequence[Measured]) -> str:
    """Return the report."""
    worst = max(measured, key=lambda body: median(body.stalls_ms))
    columns = ["body", "route", "status", "answer ms", "stall ms, median", "stall ms, worst"]
    table = Table(columns, [body.row for body in measured]).as_markdown()
    return (
        f"# Stand-stills of the gateway's event loop\n\n{(__doc__ or '').partition(chr(10))[2].strip()}\n\n"
        f"Each body is sent {len(worst.stalls_ms)} times. The longest median is {median(worst.stalls_ms):.0f} ms "
        f"({worst.name}); the limit is {MAX_STALL_MS:.0f} ms.\n\n{table}\n"
    )


async def run(only: str, times: int) -> list[Measured]:
    """Measure all bodies in whose name `only` occurs."""
    found = {QUIET: Costly("", b""), **costly_bodies()}
    measured = list[Measured]()
    async with Stack(StackConfig()) as stack:
        key = stack.headers["authorization"].removeprefix("Bearer ")
        for name, costly in found.items():
            if only in name or name == QUIET:
                body = await asyncio.to_thread(
                    measure, name, costly, stack.addresses["gateway"], key, times
                )
                print("  ".join(body.row), flush=True)
                measured.append(body)
    return measured


def main() -> int:
    """Return the exit status: 1 if a body's median exceeds the limit."""
    parser = argparse.ArgumentParser(prog="python -m semspec_bench.stalls", description=__doc__)
    parser.add_argument(
        "--only", default="", help="only bodies in whose name this occurs; the table is not kept"
    )
    parser.add_argument("--times", type=int, default=5, help="how often each body is sent")
    options = parser.parse_args()
    measured = asyncio.run(run(options.only, options.times))
    report = page(measured)
    if not options.only:
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / "README.md").write_text(report)
    print(report)
    return int(any(median(body.stalls_ms) > MAX_STALL_MS for body in measured))


if __name__ == "__main__":
    raise SystemExit(main())
