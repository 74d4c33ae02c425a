"""The visible text of an output: reasoning, content that a stop sequence may cut, and calls of tools."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from semspec.reasoning import Parts, ReasoningParser, unfinished
from semspec.stops import StopSearch
from semspec.types import ToolCall

CALL, END_OF_CALL = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class Delta:
    """The next visible text, and calls of tools; the reasoning precedes the content, the content the calls."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[ToolCall, ...] = ()

    def __add__(self, other: "Delta") -> "Delta":
        return Delta(
            self.reasoning + other.reasoning, self.content + other.content, self.calls + other.calls
        )


class StopChecker:
    """Finds the visible text of an output that arrives in parts. Text that may begin a stop sequence is buffered."""

    def __init__(
        self,
        stops: Sequence[str] = (),
        keep_stop: bool = False,
        reasoning_parser: ReasoningParser | None = None,
        call_parser: "CallParser | None" = None,
    ) -> None:
        """`keep_stop` leaves the stop sequence in the text; without parsers all text is content."""
        self.reasoning_parser = reasoning_parser
        self._search = StopSearch(stops, reasoning_parser, keep_stop)
        self._call_parser = call_parser
        self.seen = Delta()
        """All visible text so far."""

    @property
    def stop(self) -> str | None:
        """The stop sequence that ended the text, if one did."""
        return self._search.stop

    def add(self, text: str) -> Delta:
        """Return the text that becomes visible with the next text; none after a stop sequence."""
        return self._shown(self._search.add(text))

    def close(self) -> Delta:
        """Return the buffered text at the end of the output."""
        last = self._shown(self._search.close())
        if self._call_parser:
            rest = self._call_parser.close()
            self.seen += rest
            last += rest
        return last

    def _shown(self, parts: Parts) -> Delta:
        delta = Delta(parts.reasoning, parts.content)
        if self._call_parser is not None:
            delta = Delta(parts.reasoning) + self._call_parser.split(parts.content)
        self.seen += delta
        return delta


def beginning_of_call(name: str) -> str:
    """The text of a call before its arguments, as the chat templates of Hermes and Qwen ask for it."""
    return f'{{"name": {json.dumps(name)}, "arguments": '


FENCES = ("", "```", "```json")
"""Opening of a Markdown code block that models write before a bare call, without its line break."""


def bare_beginning_of_call(name: str) -> str:
    """The text of a bare call before its arguments, without white space."""
    return f'{{"name":{json.dumps(name)},"arguments":'


class CallParser:
    """Splits content into text and the calls of tools after it. White space before a call and the marks of a code
    block around calls belong to neither.

    A call stands between `CALL` and `END_OF_CALL` in the form of `beginning_of_call`. A content that begins with a
    bare call, which is one of an offered function without these marks, consists of bare calls: Qwen2.5-Coder writes
    them, in a code block or not (llama.cpp reads them alike).
    """

    _BEGINNING = re.compile(
        re.escape(beginning_of_call("NAME")).replace("NAME", "([A-Za-z0-9_.-]+)")
    )
    _BARE = re.compile(
        r'\s*(?:```(?:json)?\s+)?\{\s*"name":\s*"([A-Za-z0-9_.-]+)",\s*"arguments":\s*'
    )
    _FENCE = re.compile(r"\s*```(?:json)?\s*(?=" + re.escape(CALL) + ")")

    def __init__(self, id: str, names: Sequence[str] = ()) -> None:
        """`id`: the choice's, a part of which its calls' ids contain. `names`: the offered functions'."""
        self._id = id.partition("-")[2]
        self._bare = tuple(
            fence + bare_beginning_of_call(name) for fence in FENCES for name in names
        )
        self._num_calls = 0
        self._buffer = ""
        self._is_bare: bool | None = None
        """Whether the content consists of bare calls; None: not known yet."""

    def split(self, content: str) -> Delta:
        self._buffer += content
        if self._is_bare is None:
            self._is_bare = self._begins_bare()
        if self._is_bare is None:
            return Delta()
        return self._split_bare() if self._is_bare else self._split_marked()

    def close(self) -> Delta:
        """Return the rest as text: a call that was cut, or white space if there was no call."""
        buffered, self._buffer = self._buffer, ""
        is_over = self._num_calls and buffered.strip() in ("", "```")
        return Delta(content="" if is_over else buffered)

    def _begins_bare(self) -> bool | None:
        """Return whether the buffer begins with a bare call; None while more text has to tell. A code block that only
        surrounds marked calls is dropped."""
        if self._BARE.match(self._buffer) and self._without_spaces.startswith(self._bare):
            return True
        marked = tuple(f"{fence}{CALL}" for fence in FENCES[1:])
        if any(opening.startswith(self._without_spaces) for opening in (*self._bare, *marked)):
            return None
        self._buffer = self._FENCE.sub("", self._buffer, count=1)
        return False

    @property
    def _without_spaces(self) -> str:
        """The buffer without white space."""
        return "".join(self._buffer.split())

    def _split_bare(self) -> Delta:
        calls = list[ToolCall]()
        while beginning := self._BARE.match(self._buffer):
            if (end := self._end_of_arguments(self._buffer, beginning.end())) is None:
                break
            rest = self._buffer[end:].lstrip()
            if not rest.startswith("}"):
                break
            calls.append(self._call(beginning[1], self._buffer[beginning.end() : end]))
            self._buffer = rest[1:]
        return Delta(calls=tuple(calls))

    def _split_marked(self) -> Delta:
        text, calls = "", list[ToolCall]()
        while CALL in self._buffer:
            before, _, rest = self._buffer.partition(CALL)
            if (parsed := self._parsed(rest)) is None:
                break  # the call is not complete
            call, self._buffer = parsed
            text += before.rstrip()
            calls.append(call)
        if not (self._num_calls or CALL in self._buffer):
            visible = self._buffer.removesuffix(unfinished(self._buffer, (CALL,))).rstrip()
            text, self._buffer = text + visible, self._buffer.removeprefix(visible)
        return Delta(content=text, calls=tuple(calls))

    def _parsed(self, text: str) -> tuple[ToolCall, str] | None:
        """The call that `text` begins with, and the text after it; None if it is incomplete."""
        body = text.lstrip()
        if (beginning := self._BEGINNING.match(body)) is None:
            return None
        if (end := self._end_of_arguments(body, beginning.end())) is None:
            return None
        after, mark, rest = body[end:].partition(END_OF_CALL)
        if not mark or after.strip() != "}":
            return None
        return self._call(beginning[1], body[beginning.end() : end]), rest

    def _end_of_arguments(self, text: str, start: int) -> int | None:
        """Return where the JSON that begins at `start` ends; None if it is incomplete."""
        try:
            return json.JSONDecoder().raw_decode(text, start)[1]
        except (ValueError, RecursionError):
            return None

    def _call(self, name: str, arguments: str) -> ToolCall:
        self._num_calls += 1
        return ToolCall(f"call-{self._id}-{self._num_calls - 1}", name, arguments)
