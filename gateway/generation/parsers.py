"""The visible text of an output: cut at a stop sequence, split into reasoning, content and calls of tools."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

THINK, END_OF_THINKING = "<think>", "</think>"
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
    """Detects stop sequences in the text of kept segments. Text that may begin one is buffered until that is known."""

    def __init__(
        self,
        stops: Sequence[str] = (),
        keep_stop: bool = False,
        reasoning_parser: "ReasoningParser | None" = None,
        call_parser: "CallParser | None" = None,
    ) -> None:
        """`keep_stop` leaves the stop sequence in the text; without parsers all text is content."""
        self._stops, self._keep_stop = tuple(stops), keep_stop
        self.reasoning_parser = reasoning_parser
        self._reasoning_parser = reasoning_parser or ReasoningParser("content")
        self._call_parser = call_parser
        self._buffer = ""
        self.seen = Delta()
        """All visible text so far."""
        self.stop: str | None = None
        """The stop sequence that ended the text, if one did."""

    def add(self, text: str) -> Delta:
        """The text that becomes visible with the next segment; none after a stop sequence."""
        if self.stop is not None:
            return Delta()
        text = self._buffer + text
        # The first to be complete, so that the result does not depend on how the text arrives; the longest of several.
        matches = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if not matches:
            self._buffer = _unfinished(text, self._stops)
            return self._show(text.removesuffix(self._buffer))
        end, start, self.stop = min(matches)
        self._buffer = ""
        return self._show(text[: end if self._keep_stop else start])

    def close(self) -> Delta:
        """The buffered text, at the end of the output."""
        buffered, self._buffer = self._buffer, ""
        rest = self._with_calls(self._reasoning_parser.split(buffered) + self._reasoning_parser.close())
        if self._call_parser:
            rest += self._call_parser.close()
        self.seen += rest
        return rest

    def _show(self, text: str) -> Delta:
        delta = self._with_calls(self._reasoning_parser.split(text))
        self.seen += delta
        return delta

    def _with_calls(self, delta: Delta) -> Delta:
        if self._call_parser is None:
            return delta
        return Delta(delta.reasoning) + self._call_parser.split(delta.content)


class ReasoningParser:
    """Splits text at `</think>` into reasoning and content; the marks belong to neither."""

    def __init__(self, kind: str) -> None:
        """`kind` of the next text: "reasoning", "content", or "unknown" until it begins with `<think>` or not."""
        self.begins_inside = kind == "reasoning"
        self._kind = kind
        self._buffer = ""

    @property
    def is_inside(self) -> bool:
        """Whether the next text is reasoning, as far as is known."""
        return self._kind == "reasoning"

    @classmethod
    def after(cls, prompt: str) -> "ReasoningParser":
        """A parser for the output after a prompt whose template may open the reasoning, as DeepSeek-R1's does."""
        return cls("reasoning" if prompt.rstrip().endswith(THINK) else "unknown")

    def split(self, text: str) -> Delta:
        text, self._buffer = self._buffer + text, ""
        if self._kind == "unknown":
            return self._begin(text)
        if self._kind == "content":
            return Delta(content=text)
        reasoning, mark, content = text.partition(END_OF_THINKING)
        if mark:
            self._kind = "content"
            return Delta(reasoning, content)
        self._buffer = _unfinished(text, (END_OF_THINKING,))
        return Delta(reasoning=text.removesuffix(self._buffer))

    def close(self) -> Delta:
        buffered, self._buffer = self._buffer, ""
        return Delta(reasoning=buffered) if self._kind == "reasoning" else Delta(content=buffered)

    def _begin(self, text: str) -> Delta:
        start = text.lstrip()
        if not start or (len(start) < len(THINK) and THINK.startswith(start)):
            self._buffer = text
            return Delta()
        self._kind = "reasoning" if start.startswith(THINK) else "content"
        return self.split(start.removeprefix(THINK) if self._kind == "reasoning" else text)


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
            visible = self._buffer.removesuffix(_unfinished(self._buffer, (CALL,))).rstrip()
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


def _unfinished(text: str, marks: Iterable[str]) -> str:
    """The longest suffix of `text` that is a proper prefix of one of `marks`."""
    ends = (mark[:size] for mark in marks for size in range(1, len(mark)) if text.endswith(mark[:size]))
    return max(ends, key=len, default="")
