"""Stop sequences of a request in an output that arrives in pieces: one search for the gateway, which cuts the text, and
for the engines, which stop writing."""

from collections.abc import Sequence
from copy import deepcopy

from semspec.reasoning import Parts, ReasoningParser, unfinished


class StopSearch:
    """Finds the first stop sequence. Text that may begin one is buffered until that is known.

    Where reasoning is split off, stop sequences belong to the answer: none begins in the reasoning, or in the white
    space between it and the answer. The result does not depend on how the text is cut into pieces.
    """

    def __init__(
        self,
        stops: Sequence[str],
        reasoning_parser: ReasoningParser | None = None,
        keep_stop: bool = False,
    ) -> None:
        """With `keep_stop`, the stop sequence stays in the text. Without a parser, all text is content."""
        self._stops, self._keep_stop = tuple(stops), keep_stop
        self._reasoning_parser = reasoning_parser or ReasoningParser("content")
        self._has_answer = False
        """True once the content has begun, after the reasoning if there is any."""
        self._buffer = ""
        self.stop: str | None = None
        """The stop sequence that was found."""

    def add(self, text: str) -> Parts:
        """Return the text that is known to come before any stop sequence; none after one."""
        return (
            Parts() if self.stop is not None else self._searched(self._reasoning_parser.split(text))
        )

    def close(self) -> Parts:
        """Return the buffered text, at the end of the output."""
        rest = Parts() if self.stop is not None else self._searched(self._reasoning_parser.close())
        buffered, self._buffer = self._buffer, ""
        return rest + Parts(content=buffered)

    def ends_in(self, text: str) -> bool:
        """Take the next text and return whether a stop sequence is complete with it."""
        self.add(text)
        return self.stop is not None

    def would_end_in(self, text: str) -> bool:
        """Return what `ends_in` would, without taking the text."""
        return deepcopy(self).ends_in(text)

    def _searched(self, parts: Parts) -> Parts:
        return Parts(parts.reasoning, self._before_stop(parts.content))

    def _before_stop(self, content: str) -> str:
        """Return the part of the content so far that becomes visible with the next `content`."""
        space = ""
        if not self._has_answer and self._reasoning_parser.spans:
            space, content = content[: len(content) - len(content.lstrip())], content.lstrip()
        self._has_answer |= bool(content)
        content, self._buffer = self._buffer + content, ""
        # The first to be complete, so that the result does not depend on how the text arrives; the longest of several.
        matches = [
            (start + len(stop), start, stop)
            for stop in self._stops
            if (start := content.find(stop)) >= 0
        ]
        if matches:
            end, start, self.stop = min(matches)
            return space + content[: end if self._keep_stop else start]
        self._buffer = unfinished(content, self._stops)
        return space + content.removesuffix(self._buffer)
