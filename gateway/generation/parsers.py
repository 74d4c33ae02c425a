"""The visible text of an output: reasoning, content that a stop sequence may cut, and calls of tools."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from semspec.reasoning import FORMS, ReasoningForm, opened_form

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
    """Detects stop sequences in the text of kept segments. Text that may begin one is buffered until that is known.

    Where reasoning is split off, stop sequences belong to the answer: none begins in the reasoning, or in the white
    space between it and the answer.
    """

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
        self._has_answer = False
        """True once the content has begun, after the reasoning if there is any."""
        self._buffer = ""
        self.seen = Delta()
        """All visible text so far."""
        self.stop: str | None = None
        """The stop sequence that ended the text, if one did."""

    def add(self, text: str) -> Delta:
        """The text that becomes visible with the next segment; none after a stop sequence."""
        return Delta() if self.stop is not None else self._show(self._reasoning_parser.split(text))

    def close(self) -> Delta:
        """The buffered text, at the end of the output."""
        rest = Delta() if self.stop is not None else self._show(self._reasoning_parser.close())
        buffered, self._buffer = self._buffer, ""
        last = self._with_calls(Delta(content=buffered))
        if self._call_parser:
            last += self._call_parser.close()
        self.seen += last
        return rest + last

    def _show(self, text: Delta) -> Delta:
        delta = self._with_calls(Delta(text.reasoning, self._before_stop(text.content)))
        self.seen += delta
        return delta

    def _before_stop(self, content: str) -> str:
        """Return the part of the content so far that becomes visible with the next `content`."""
        space = ""
        if not self._has_answer and self._reasoning_parser.spans:
            space, content = content[: len(content) - len(content.lstrip())], content.lstrip()
        self._has_answer |= bool(content)
        content, self._buffer = self._buffer + content, ""
        # The first to be complete, so that the result does not depend on how the text arrives; the longest of several.
        matches = [(at + len(stop), at, stop) for stop in self._stops if (at := content.find(stop)) >= 0]
        if matches:
            end, start, self.stop = min(matches)
            return space + content[: end if self._keep_stop else start]
        self._buffer = _unfinished(content, self._stops)
        return space + content.removesuffix(self._buffer)

    def _with_calls(self, delta: Delta) -> Delta:
        if self._call_parser is None:
            return delta
        return Delta(delta.reasoning) + self._call_parser.split(delta.content)


Part = Literal["unknown", "reasoning", "content", "header"]
"""Kind of the next text. It is unknown until an opening is there or ruled out; a header names a message's channel."""


class ReasoningParser:
    """Splits text into reasoning and content by the marks of a `ReasoningForm`, which belong to neither."""

    def __init__(self, part: Part, form: ReasoningForm | None = None) -> None:
        """Set `part` and `form` of the next text. The default form is that of the first opening."""
        self.form = form
        """None: unknown, or the text is content alone."""
        self.spans: list[tuple[int, int | None]] = [(0, None)] if part == "reasoning" else []
        """Start and end of the reasoning in the text, in characters; None: it goes on."""
        self._part = part
        self._start = 0
        """Position at which the part begins, with its marks."""
        self._num_read = 0
        """Characters before the buffer."""
        self._buffer = ""

    @property
    def is_inside(self) -> bool:
        """Whether the next text is reasoning, as far as is known."""
        return self._part == "reasoning"

    @classmethod
    def after(cls, prompt: str) -> "ReasoningParser":
        """A parser for the output after a prompt whose template may open the reasoning, as DeepSeek-R1's does."""
        form = opened_form(prompt)
        return cls("reasoning" if form else "unknown", form)

    def split(self, text: str) -> Delta:
        """Return what `text` adds to reasoning and content."""
        self._buffer += text
        if self._part == "unknown":
            self._begin()
        shown = Delta()
        while (mark := self._next_mark()) and mark in self._buffer:
            before = self._read(self._buffer.index(mark))
            shown += self._shown(before)
            self._pass(mark, before)
        if self._part in ("reasoning", "content"):
            shown += self._shown(self._read(len(self._buffer) - len(_unfinished(self._buffer, (mark,)))))
        return shown

    def close(self) -> Delta:
        """Return the buffered text at the end of the output."""
        self._part = "content" if self._part == "unknown" else self._part
        return self._shown(self._read(len(self._buffer)))

    def _begin(self) -> None:
        """Take the opening from the buffer, or find that there is none."""
        start = self._buffer.lstrip()
        openings = {form.header[0] if form.header else form.opening: form for form in FORMS}
        for opening, form in openings.items():
            if start.startswith(opening):
                self._read(len(self._buffer) - len(start) + len(opening))
                self.form = form
                self._enter("header" if form.header else "reasoning")
                return
        if start and not any(opening.startswith(start) for opening in openings):
            self._part = "content"

    def _next_mark(self) -> str:
        """Return the mark that ends the part; empty if nothing does."""
        if self.form is None or self._part == "unknown":
            return ""
        if self._part == "header":
            return self.form.header[1] if self.form.header else ""
        return self.form.closing if self._part == "reasoning" or self.form.header else ""

    def _pass(self, mark: str, before: str) -> None:
        """Go on after `mark`, which ends the part with the text `before`."""
        if self._part == "reasoning":
            self.spans[-1] = (self.spans[-1][0], self._num_read)
        self._read(len(mark))
        if self.form is None or self.form.header is None:
            self._enter("content")
        elif self._part == "header":
            self._enter("reasoning" if self.form.is_reasoning(before) else "content")
        else:
            self._start = self._num_read
            self._enter("header")

    def _enter(self, part: Part) -> None:
        self._part = part
        if part == "reasoning":
            self.spans.append((self._start, None))

    def _read(self, num_characters: int) -> str:
        """Take this many characters from the buffer."""
        text, self._buffer = self._buffer[:num_characters], self._buffer[num_characters:]
        self._num_read += num_characters
        return text

    def _shown(self, text: str) -> Delta:
        if self._part == "reasoning":
            return Delta(reasoning=text)
        return Delta(content=text if self._part == "content" else "")


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

    _BEGINNING = re.compile(re.escape(beginning_of_call("NAME")).replace("NAME", "([A-Za-z0-9_.-]+)"))
    _BARE = re.compile(r'\s*(?:```(?:json)?\s+)?\{\s*"name":\s*"([A-Za-z0-9_.-]+)",\s*"arguments":\s*')
    _FENCE = re.compile(r"\s*```(?:json)?\s*(?=" + re.escape(CALL) + ")")

    def __init__(self, id: str, names: Sequence[str] = ()) -> None:
        """`id`: of the choice; those of its calls begin with a part of it. `names`: of the offered functions."""
        self._id = id.partition("-")[2]
        self._bare = tuple(fence + bare_beginning_of_call(name) for fence in FENCES for name in names)
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
        """The rest as text: a call that was cut, or white space where there was no call."""
        buffered, self._buffer = self._buffer, ""
        is_over = self._num_calls and buffered.strip() in ("", "```")
        return Delta(content="" if is_over else buffered)

    def _begins_bare(self) -> bool | None:
        """Return whether the buffer begins with a bare call; None while more text has to tell. A code block that only
        surrounds marked calls is dropped."""
        if self._BARE.match(self._buffer) and self._squeezed.startswith(self._bare):
            return True
        marked = tuple(f"{fence}{CALL}" for fence in FENCES[1:])
        if any(opening.startswith(self._squeezed) for opening in (*self._bare, *marked)):
            return None
        self._buffer = self._FENCE.sub("", self._buffer, count=1)
        return False

    @property
    def _squeezed(self) -> str:
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
            visible = self._buffer.removesuffix(_unfinished(self._buffer, (CALL,))).rstrip()
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


def _unfinished(text: str, marks: Iterable[str]) -> str:
    """The longest suffix of `text` that is a proper prefix of one of `marks`."""
    ends = (mark[:size] for mark in marks for size in range(1, len(mark)) if text.endswith(mark[:size]))
    return max(ends, key=len, default="")
