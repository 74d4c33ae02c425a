"""Display of a streamed answer: its text, with a sign at the end of each decided segment."""

import os
import sys
from unicodedata import category

from semspec.client import Json
from semspec.reasoning import ENDS

GREY, BOLD, REFUSED = "90", "1", "2;31"
SIGNS = {"accepted": ("✓", "32"), "target": ("✎", "33"), "draft": ("·", "39")}
"""Sign and colour of a segment: accepted, or else of its writer."""
NUMBERS = {"draft_probability": "q", "target_probability": "p", "ratio": "p/q", "draw": "draw"}
FORMS = {
    "acceptance_rate": "{:.0%} accepted",
    "target_ratio": "{:.0%} written by the target",
    "tokens_per_s": "{:.1f} tokens/s",
    "latency_ms": "{:.0f} ms",
    "fallback": "fallback: {}",
    "degraded": "degraded: not kept in full",
    "id": "{}",
}


class Screen:
    """Shows one answer on stdout as it arrives; notes, which are not part of it, on stderr.

    White space is printed once text follows it, so that the sign of a segment stands directly after its last word.
    """

    def __init__(self, is_plain: bool, verbose: bool) -> None:
        self._is_plain, self._verbose = is_plain, verbose
        self._space = ""
        """White space that has arrived and is not printed yet."""
        self._is_at_start = True
        """Whether nothing stands on the current line."""
        self._has_reasoning = False
        self._is_answer = False
        """Whether a reasoning has ended, so that the text is the answer."""

    def show(self, chunk: Json) -> None:
        delta = (chunk.get("choices") or [{}])[0].get("delta") or {}
        extension = chunk.get("semspec") or {}
        reasoning, content = (
            delta.get("reasoning_content") or delta.get("reasoning") or "",
            delta.get("content") or "",
        )
        if self._is_plain:
            self._print(
                printable(reasoning + content) if sys.stdout.isatty() else reasoning + content
            )
            return
        self._show_text(reasoning, content)
        if "segment" in extension:
            self._end_segment(extension["segment"])
        if "id" in extension:
            values = {form: extension.get(name) for name, form in FORMS.items()}
            parts = [
                form.format(value)
                for form, value in values.items()
                if value is not None and value is not False
            ]
            self.end()
            self._print(f"{paint(' · '.join(parts), GREY)}\n")

    def note(self, words: str) -> None:
        print(f"semspec chat: {words}", file=sys.stderr)

    def end(self) -> None:
        """End the last line."""
        self._space = ""
        if not self._is_at_start:
            self._print("\n")

    def _show_text(self, reasoning: str, content: str) -> None:
        """Print what has arrived; the answer after a reasoning is bold, wherever the server or the model ends it."""
        self._write(reasoning)
        self._has_reasoning = self._has_reasoning or bool(reasoning)
        end = next((end for end in ENDS if end in content), None)
        if end is not None and not self._is_answer:
            reasoning, _, content = content.partition(end)
            self._write(reasoning)
        self._is_answer = (
            self._is_answer or end is not None or bool(self._has_reasoning and content)
        )
        self._write(content)

    def _write(self, text: str) -> None:
        text = self._space + printable(text)
        words = text.strip()
        before, words, self._space = text.partition(words) if words else ("", "", text)
        if words:
            self._print(before + (paint(words, BOLD) if self._is_answer else words))

    def _end_segment(self, record: Json) -> None:
        """Print the sign of a segment after its text, and with `verbose` how it was decided."""
        sign, colour = SIGNS["accepted" if record["verdict"] == "accepted" else record["writer"]]
        self._print(f"{'' if self._is_at_start else ' '}{paint(sign, colour)}")
        if not self._verbose:
            return
        if record.get("rejected"):
            self._print(f"\n{paint('✗ ' + printable(record['rejected']['text']).strip(), REFUSED)}")
        numbers = [
            f"{name} {record[key]:.3g}"
            for key, name in NUMBERS.items()
            if record.get(key) is not None
        ]
        if words := "  ".join(filter(None, [*numbers, record.get("fallback")])):
            self._print(f"\n{paint(printable(words), GREY)}")
        self._space = self._space if self._space.startswith("\n") else "\n"

    def _print(self, text: str) -> None:
        print(text, end="", flush=True)
        self._is_at_start = text.endswith("\n") if text else self._is_at_start


def paint(text: str, colour: str) -> str:
    """Return text in an ANSI colour or style."""
    return f"\x1b[{colour}m{text}\x1b[0m" if text and "NO_COLOR" not in os.environ else text


def printable(text: str) -> str:
    """Return the text without control characters, which could control the terminal."""
    return "".join(
        character for character in text if character in "\n\t" or category(character) != "Cc"
    )
