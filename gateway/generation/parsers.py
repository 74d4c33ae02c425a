"""The visible text of an output: reasoning, content that a stop sequence may cut, and calls of tools."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from semspec.reasoning import Parts, ReasoningParser, unfinished
from semspec.stops import StopSearch

CALL, END_OF_CALL = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool."""

    id: str
    name: str
    arguments: str
    """JSON text."""

    @property
    def openai(self) -> dict[str, Any]:
        """The call as OpenAI's API has it."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True, slots=True)
class Delta:
    """The next visible text, and calls of tools; the reasoning precedes the content, the content the calls."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[ToolCall, ...] = ()

    def __add__(self, other: "Delta") -> "Delta":
        return Delta(self.reasoning + other.reasoning, self.content + other.content, self.calls + other.calls)

    @property
    def calls_json(self) -> str:
        """The calls as in `Message.tool_calls`."""
        return json.dumps([call.openai for call in self.calls]) if self.calls else ""


class StopChecker:
    """The visible text of an output whose segments, or parts of them, arrive one after another. What may begin a stop
    sequence is buffered until that is known."""

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
        """The text that becomes visible with the next text; none after a stop sequence."""
        return self._shown(self._search.add(text))

    def close(self) -> Delta:
        """The buffered text, at the end of the output."""
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


class CallParser:
    """Splits content into text and the calls of tools after it, each in the form of `beginning_of_call`. White space
    before a call belongs to neither."""

    _BEGINNING = re.compile(re.escape(beginning_of_call("NAME")).replace("NAME", "([A-Za-z0-9_.-]+)"))

    def __init__(self, id: str) -> None:
        """`id`: of the choice; those of its calls begin with a part of it."""
        self._id = id.partition("-")[2]
        self._num_calls = 0
        self._buffer = ""

    def split(self, content: str) -> Delta:
        self._buffer += content
        text, calls = "", list[ToolCall]()
        while CALL in self._buffer:
            before, _, rest = self._buffer.partition(CALL)
            if (parsed := self._parsed(rest)) is None:
                break  # the call is not complete
            call, self._buffer = parsed
            text += before.rstrip()
            calls.append(call)
        else:
            visible = self._buffer.removesuffix(unfinished(self._buffer, (CALL,))).rstrip()
            text, self._buffer = text + visible, self._buffer.removeprefix(visible)
        return Delta(content=text, calls=tuple(calls))

    def close(self) -> Delta:
        """The rest as text: a call that was cut, or white space where there was no call."""
        buffered, self._buffer = self._buffer, ""
        return Delta(content=buffered if buffered.strip() or not self._num_calls else "")

    def _parsed(self, text: str) -> tuple[ToolCall, str] | None:
        """The call that `text` begins with, and the text after it; None if it is incomplete."""
        body = text.lstrip()
        if (beginning := self._BEGINNING.match(body)) is None:
            return None
        try:
            _, end = json.JSONDecoder().raw_decode(body, beginning.end())
        except (ValueError, RecursionError):
            return None
        after, mark, rest = body[end:].partition(END_OF_CALL)
        if not mark or after.strip() != "}":
            return None
        self._num_calls += 1
        id = f"call-{self._id}-{self._num_calls - 1}"
        return ToolCall(id, beginning[1], body[beginning.end() : end]), rest
