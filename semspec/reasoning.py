"""The forms in which models mark their reasoning: the one table for engines, the decoding loop and the gateway."""

import re
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReasoningForm:
    """Marks with which a model separates its reasoning from its answer."""

    opening: str
    """Begins the reasoning. The model writes it, or the chat template ends with it."""
    closing: str
    """Ends the reasoning."""
    answer: str
    """From the end of the reasoning to the beginning of the answer, where the server ends the reasoning."""
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


def expected_form(prompt: str) -> ReasoningForm:
    """Return the form in which a model is expected to open its reasoning after a prompt that has not."""
    if prompt.endswith("<|start|>assistant"):
        return HARMONY
    return MISTRAL if MISTRAL.opening in prompt else THINK
