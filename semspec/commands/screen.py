"""Display of a streamed answer: its text, or each decided segment with its mark."""

import os
import sys
from unicodedata import category

from semspec.client import Json
from semspec.reasoning import ENDS

GREY, REFUSED = "90", "2;31"
MARKS = {"accepted": ("✓", "32"), "target": ("✎", "33"), "draft": ("·", "39")}
"""Sign and colour of a segment: accepted, or else of its writer."""
NUMBERS = {"draft_probability": "q", "target_probability": "p", "ratio": "p/q", "draw": "draw", "score": "score"}
FORMS = {
    "acceptance_rate": "{:.0%} accepted",
    "target_ratio": "{:.0%} written by the target",
    "tokens_per_s": "{:.0f} tokens/s",
    "latency_ms": "{:.0f} ms",
    "fallback": "fallback: {}",
    "degraded": "degraded: not kept in full",
    "id": "{}",
}


class Screen:
    """Shows one answer on stdout; notes, which are not part of it, on stderr."""

    def __init__(self, is_plain: bool, verbose: bool) -> None:
        self._is_plain, self._verbose = is_plain, verbose
        self._last = "\n"
        self._is_answer = False
        self._is_open = False
        """Whether a part of the segment that the target is writing is printed."""
        self._space = ""
        """White space at its end, which waits for more."""

    def show(self, chunk: Json) -> None:
        delta = (chunk.get("choices") or [{}])[0].get("delta") or {}
        extension = chunk.get("semspec") or {}
        if self._is_plain:
            text = (delta.get("reasoning_content") or delta.get("reasoning") or "") + (delta.get("content") or "")
            print(printable(text) if sys.stdout.isatty() else text, end="", flush=True)
            self._last = text or self._last
            return
        if "segment" in extension:
            self._show_segment(extension["segment"], delta)
        elif "writing" in extension:
            self._show_open(delta)
        if "id" in extension:
            told = {form: extension.get(name) for name, form in FORMS.items()}
            parts = [form.format(value) for form, value in told.items() if value is not None and value is not False]
            print(painted(" · ".join(parts), GREY))

    def note(self, words: str) -> None:
        print(f"semspec chat: {words}", file=sys.stderr)

    def end(self) -> None:
        """End the last line."""
        if self._is_open or not self._last.endswith("\n"):
            print()

    def _show_open(self, delta: Json) -> None:
        """Print the next text of a segment that the target is writing; the answer in bold."""
        sign, colour = MARKS["target"]
        for text, style in ((delta.get("reasoning_content"), colour), (delta.get("content"), f"1;{colour}")):
            text = self._space + printable(text or "")
            shown = text.rstrip()
            self._space = text[len(shown) :]
            if shown:
                if not self._is_open:
                    print(painted(sign, colour), end=" ")
                shown = shown if self._is_open else shown.lstrip()
                print(coloured(shown.replace("\n", "\n  "), style), end="", flush=True)
                self._is_open = True

    def _show_segment(self, record: Json, delta: Json) -> None:
        """Print a segment. The text after the reasoning, or in the delta's content where the server splits it off, is
        the answer, in bold."""
        sign, colour = MARKS["accepted" if record["verdict"] == "accepted" else record["writer"]]
        end = next((end for end in ENDS if end in record["text"]), ENDS[0])
        reasoning, end, answer = record["text"].partition(end)
        if not end and (self._is_answer or ("reasoning_content" in delta and delta.get("content"))):
            reasoning, answer = "", reasoning
        self._is_answer = self._is_answer or bool(end)
        parts = painted(reasoning, colour), painted(answer, f"1;{colour}")
        if self._is_open:
            self._show_open(delta)
            print()
        else:
            print(painted(sign, colour), "\n  ".join(filter(None, parts)))
        self._is_open, self._space = False, ""
        if self._verbose and record.get("rejected"):
            print(painted("✗", REFUSED), painted(record["rejected"]["text"], REFUSED))
        numbers = [f"{name} {record[key]:.3g}" for key, name in NUMBERS.items() if record.get(key) is not None]
        if self._verbose and (words := "  ".join(filter(None, [*numbers, record.get("fallback")]))):
            print(f"  {painted(words, GREY)}")


def painted(text: str, colour: str) -> str:
    """Text in a colour of ANSI; its further lines are indented like its first, behind a mark."""
    return coloured(printable(text).strip().replace("\n", "\n  "), colour)


def coloured(text: str, colour: str) -> str:
    """Text in a colour of ANSI."""
    return f"\x1b[{colour}m{text}\x1b[0m" if text and "NO_COLOR" not in os.environ else text


def printable(text: str) -> str:
    """The text without control characters, which could control the terminal."""
    return "".join(character for character in text if character in "\n\t" or category(character) != "Cc")
