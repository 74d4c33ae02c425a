"""Display of a streamed answer: plain text, or segments with the decision on each draft."""

import sys
from contextlib import AbstractContextManager

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from semspec.commands.records import REFUSED, THINK_END, Json, judgement, mark_of, one_line, printable, statistics


class PlainScreen(AbstractContextManager["PlainScreen"]):
    """The text of one answer on stdout, nothing else; notes, which are not part of it, on stderr."""

    def __init__(self) -> None:
        self._last = "\n"

    def __exit__(self, *_: object) -> None:
        if not self._last.endswith("\n"):
            sys.stdout.write("\n")
            sys.stdout.flush()

    def show(self, chunk: Json) -> None:
        text = "".join(delta_texts(chunk))
        text = printable(text) if sys.stdout.isatty() else text
        sys.stdout.write(text)
        sys.stdout.flush()
        self._last = text or self._last

    def note(self, words: str) -> None:
        print(f"semspec chat: {words}", file=sys.stderr)


class ColourScreen(AbstractContextManager["ColourScreen"]):
    """Shows segments with their marks, undecided drafts in grey, and one line of statistics."""

    def __init__(self, console: Console, verbose: bool) -> None:
        self._console, self._verbose = console, verbose
        self._live = Live(Text(), console=console, transient=True, auto_refresh=False)
        self._in_flight: dict[int, str] = {}
        self._in_answer = False

    def __enter__(self) -> "ColourScreen":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.update(Text())
        self._live.stop()

    def show(self, chunk: Json) -> None:
        extension = chunk.get("semspec") or {}
        if "drafted" in extension:
            for index, segment in enumerate(extension["drafted"]["segments"], extension["drafted"]["index"]):
                self._in_flight[index] = segment["text"]
        if "segment" in extension:
            self._settle(extension["segment"], chunk)
        if "id" in extension:
            self._console.print(Text(statistics(extension), "bright_black"), soft_wrap=True)
        self._live.update(self._drafts(), refresh=True)

    def note(self, words: str) -> None:
        self._console.print(Text(words, "bright_black italic"))

    def _drafts(self) -> Text:
        lines = [f"… {one_line(text)}" for text in self._in_flight.values()]
        return Text("\n".join(lines), "bright_black", no_wrap=True, overflow="ellipsis")

    def _settle(self, record: Json, chunk: Json) -> None:
        """Show a decided segment. A rejected draft also removes the drafts after it."""
        was_rejected = record["verdict"] == "rewritten"
        self._in_flight = {
            index: text for index, text in self._in_flight.items() if index > record["index"] and not was_rejected
        }
        self._live.update(self._drafts(), refresh=True)  # printing redraws the undecided drafts
        self._console.print(self._segment(record, chunk))
        if self._verbose:
            self._print_details(record)

    def _segment(self, record: Json, chunk: Json) -> Table:
        mark = mark_of(record)
        reasoning, answer = map(str.strip, self._parts(printable(record["text"]), chunk))
        text = Text(reasoning, mark.colour)
        text.append("\n" if reasoning and answer else "").append(answer, f"bold {mark.colour}")
        return _marked(Text(mark.sign, mark.colour), text)

    def _parts(self, text: str, chunk: Json) -> tuple[str, str]:
        """Split a segment into reasoning and answer."""
        if THINK_END in text:
            self._in_answer = True
            reasoning, _, answer = text.partition(THINK_END)
            return reasoning, answer
        reasoning, content = delta_texts(chunk)
        is_separated = "reasoning_content" in _delta(chunk)
        if self._in_answer or (is_separated and content and not reasoning):
            return "", text
        return text, ""

    def _print_details(self, record: Json) -> None:
        if record.get("rejected"):
            style = f"{REFUSED.colour} dim"
            self._console.print(
                _marked(Text(REFUSED.sign, style), Text(printable(record["rejected"]["text"]).strip(), style))
            )
        if words := judgement(record):
            self._console.print(Text(f"  {words}", "bright_black"))


def _marked(sign: Text, text: Text) -> Table:
    """A sign and a text in two columns."""
    grid = Table.grid(padding=(0, 1))
    grid.add_row(sign, text)
    return grid


def delta_texts(chunk: Json) -> tuple[str, str]:
    """Reasoning and content in a chunk."""
    delta = _delta(chunk)
    return delta.get("reasoning_content") or delta.get("reasoning") or "", delta.get("content") or ""


def _delta(chunk: Json) -> Json:
    choices = chunk.get("choices") or [{}]
    delta: Json = choices[0].get("delta") or {}
    return delta
