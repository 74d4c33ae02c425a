"""The forms in which models mark their reasoning: the one table for engines, the decoding loop and the gateway."""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class ReasoningForm:
    """Marks with which a model separates its reasoning from its answer."""

    opening: str
    """Begins the reasoning. The model writes it, or the chat template ends with it."""
    closing: str
    """Ends the reasoning."""
    answer: str
    """Text that the server inserts between reasoning and answer when it ends the reasoning."""
    header: tuple[str, str] | None = None
    """Marks around the channel of a message, for a model that writes messages. Each message ends with `closing`. Those
    of the channel in `opening` are reasoning, and all others belong to the answer."""
    plain: str = ""
    """Begins an answer without reasoning."""

    def is_reasoning(self, header: str) -> bool:
        """Return whether a message with this header, which is the text before the last mark of it, is reasoning."""
        if self.header is None:
            return False
        start, stop = self.header
        channel = header.rpartition(start)[2].split()[:1]
        return f"{start}{''.join(channel)}{stop}" == self.opening

    @property
    def marks(self) -> frozenset[str]:
        """The tokens of the form."""
        return frozenset(_MARK.findall(self.opening + self.answer))


_MARK = re.compile(r"<\|[a-z]+\|>|</?[a-z]+>|\[/?[A-Z]+\]")

THINK = ReasoningForm("<think>", "</think>", "</think>\n\n")
"""DeepSeek's, Qwen's and most others'."""
MISTRAL = ReasoningForm("[THINK]", "[/THINK]", "[/THINK]")
"""Magistral's."""
HARMONY = ReasoningForm(
    "<|channel|>analysis<|message|>",
    "<|end|>",
    "<|end|><|start|>assistant<|channel|>final<|message|>",
    header=("<|channel|>", "<|message|>"),
    plain="<|channel|>final<|message|>",
)
"""Form of gpt-oss."""
FORMS = (THINK, MISTRAL, HARMONY)
ENDS = tuple(form.answer.rstrip() for form in FORMS)
"""Text between reasoning and answer in each form."""

_SUSPECT = re.compile(r"think|thought|reason|channel|reflect", re.IGNORECASE)


def known_forms(added_tokens: Collection[str]) -> list[ReasoningForm]:
    """Return the forms of which a tokenizer with these added tokens has all marks."""
    return [form for form in FORMS if form.marks <= set(added_tokens)]


def unknown_marks(added_tokens: Collection[str]) -> list[str]:
    """Added tokens that seem to mark reasoning in a form that is not in the table, in alphabetical order."""
    known = frozenset().union(*(form.marks for form in known_forms(added_tokens)))
    return sorted(token for token in added_tokens if _SUSPECT.search(token) and token not in known)


def opened_form(prompt: str) -> ReasoningForm | None:
    """Return the form of the reasoning that a prompt has opened; None if it has opened none."""
    return next((form for form in FORMS if prompt.rstrip().endswith(form.opening)), None)


def answer_start(prompt: str, text: str) -> int | None:
    """Return where the answer begins in `text`, the output after `prompt`: behind the mark that closes the reasoning,
    or at 0 without a reasoning. None: the reasoning goes on, or `text` may still open one."""
    form, start = opened_form(prompt), 0
    if form is None:
        begun = text.lstrip()
        form = next((form for form in FORMS if begun.startswith(form.opening)), None)
        if form is None:
            return None if any(form.opening.startswith(begun) for form in FORMS) else 0
        start = text.index(form.opening) + len(form.opening)
    end = text.find(form.closing, start)
    return None if end < 0 else end + len(form.closing)


def is_reasoning(prompt: str, text: str) -> bool:
    """Return whether `text`, the output after `prompt`, ends within a reasoning; False if none is opened yet."""
    begun = text.lstrip()
    is_opened = opened_form(prompt) or any(begun.startswith(form.opening) for form in FORMS)
    return bool(is_opened) and answer_start(prompt, text) is None


def expected_form(prompt: str) -> ReasoningForm:
    """Return the form in which a model is expected to open its reasoning after a prompt that has not."""
    if prompt.endswith("<|start|>assistant"):
        return HARMONY
    return MISTRAL if MISTRAL.opening in prompt else THINK


@dataclass(frozen=True, slots=True)
class Parts:
    """A text's reasoning and the content after it."""

    reasoning: str = ""
    content: str = ""

    def __add__(self, other: "Parts") -> "Parts":
        return Parts(self.reasoning + other.reasoning, self.content + other.content)


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
        """Return whether the next text is known to be reasoning."""
        return self._part == "reasoning"

    @classmethod
    def after(cls, prompt: str) -> "ReasoningParser":
        """A parser for the output after a prompt whose template may open the reasoning, as DeepSeek-R1's does."""
        form = opened_form(prompt)
        return cls("reasoning" if form else "unknown", form)

    def split(self, text: str) -> Parts:
        """Return what `text` adds to reasoning and content."""
        self._buffer += text
        if self._part == "unknown":
            self._begin()
        shown = Parts()
        while (mark := self._next_mark()) and mark in self._buffer:
            before = self._read(self._buffer.index(mark))
            shown += self._shown(before)
            self._pass(mark, before)
        if self._part in ("reasoning", "content"):
            shown += self._shown(
                self._read(len(self._buffer) - len(unfinished(self._buffer, (mark,))))
            )
        return shown

    def close(self) -> Parts:
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

    def _shown(self, text: str) -> Parts:
        if self._part == "reasoning":
            return Parts(reasoning=text)
        return Parts(content=text if self._part == "content" else "")


def unfinished(text: str, marks: Iterable[str]) -> str:
    """The longest suffix of `text` that is a proper prefix of one of `marks`."""
    ends = (
        mark[:size] for mark in marks for size in range(1, len(mark)) if text.endswith(mark[:size])
    )
    return max(ends, key=len, default="")
