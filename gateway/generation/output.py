"""The text a client sees: ended before a stop sequence, with reasoning and answer apart."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

THINK, END_OF_THINKING = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Delta:
    """The next text of either kind; the reasoning comes first."""

    reasoning: str = ""
    content: str = ""

    def __add__(self, other: "Delta") -> "Delta":
        return Delta(self.reasoning + other.reasoning, self.content + other.content)


class StopChecker:
    """Grows with the segments kept. Text that may yet turn out to begin a mark is held back until that is known."""

    def __init__(
        self, stops: Sequence[str] = (), keep_stop: bool = False, reasoning_parser: "ReasoningParser | None" = None
    ) -> None:
        """`keep_stop` leaves the stop sequence in the text; without a splitter everything is content."""
        self._stops, self._keep_stop = tuple(stops), keep_stop
        self._reasoning_parser = reasoning_parser or ReasoningParser("content")
        self._held = ""
        self.seen = Delta()
        """All that was let through."""
        self.stop: str | None = None
        """The stop sequence that ended the text."""

    def add(self, text: str) -> Delta:
        """What a further segment lets the client see; nothing more once a stop sequence was met."""
        if self.stop is not None:
            return Delta()
        text = self._held + text
        places = [(position, stop) for stop in self._stops if (position := text.find(stop)) >= 0]
        if not places:
            self._held = _unfinished(text, self._stops)
            return self._let(text.removesuffix(self._held))
        position, stop = min(places)
        self.stop, self._held = stop, ""
        return self._let(text[: position + len(stop)] if self._keep_stop else text[:position])

    def close(self) -> Delta:
        """What was held back, now that nothing follows."""
        held, self._held = self._held, ""
        rest = self._reasoning_parser.split(held) + self._reasoning_parser.close()
        self.seen += rest
        return rest

    def _let(self, text: str) -> Delta:
        delta = self._reasoning_parser.split(text)
        self.seen += delta
        return delta


class ReasoningParser:
    """Parts text at `</think>`; the marks belong to neither side."""

    def __init__(self, kind: str) -> None:
        """`kind` of the text to come: "reasoning", "content", or "unknown" until it begins with `<think>` or not."""
        self._kind = kind
        self._held = ""

    @classmethod
    def after(cls, prompt: str) -> "ReasoningParser":
        """For a prompt whose template may have opened the reasoning already, as that of DeepSeek-R1 does."""
        return cls("reasoning" if prompt.rstrip().endswith(THINK) else "unknown")

    def split(self, text: str) -> Delta:
        text, self._held = self._held + text, ""
        if self._kind == "unknown":
            return self._begin(text)
        if self._kind == "content":
            return Delta(content=text)
        reasoning, mark, content = text.partition(END_OF_THINKING)
        if mark:
            self._kind = "content"
            return Delta(reasoning, content)
        self._held = _unfinished(text, (END_OF_THINKING,))
        return Delta(reasoning=text.removesuffix(self._held))

    def close(self) -> Delta:
        held, self._held = self._held, ""
        return Delta(reasoning=held) if self._kind == "reasoning" else Delta(content=held)

    def _begin(self, text: str) -> Delta:
        start = text.lstrip()
        if not start or (len(start) < len(THINK) and THINK.startswith(start)):
            self._held = text
            return Delta()
        self._kind = "reasoning" if start.startswith(THINK) else "content"
        return self.split(start.removeprefix(THINK) if self._kind == "reasoning" else text)


def _unfinished(text: str, marks: Iterable[str]) -> str:
    """The longest end of `text` that begins one of `marks`."""
    ends = (mark[:size] for mark in marks for size in range(1, len(mark)) if text.endswith(mark[:size]))
    return max(ends, key=len, default="")
