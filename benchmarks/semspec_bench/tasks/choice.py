"""Multiple choice: GPQA-Diamond."""

import hashlib
import re
from collections.abc import Mapping

from semspec.types import Message
from semspec_bench.tasks.answers import boxed_answers, conclusion
from semspec_bench.tasks.protocol import Task
from semspec_bench.tasks.source import HubDataset, Row, make_questions, read_rows

GPQA_DIAMOND = HubDataset("Idavidrein/gpqa", "train", config="gpqa_diamond", is_gated=True)
LETTERS = "ABCD"
_OPTIONS = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")

_WRAPPING = re.compile(r"\\(?:text|math)?(?:bf|it|rm)?(?![A-Za-z])|[{}$*\s]")
_BOXED_LETTER = re.compile(r"\(?([A-D])(?:[).:].*)?")
_NAMED_LETTER = re.compile(r"(?i:answer)[ \t*]*:[ \t*$({\\]*([A-D])(?![A-Za-z])")


def load_choice(name: str, dataset: HubDataset, data: str | None) -> Task:
    """Load the task of a dataset with GPQA's fields. Raises: InvalidRequest, see `read_rows` and `Row.text`."""
    return Task(
        name, make_questions(read_rows(dataset, data), "Record ID", _parts), is_right_letter
    )


def _parts(row: Row) -> tuple[str, tuple[Message, ...], str]:
    question = row.text("Question")
    options = _shuffled(question, {field: row.text(field) for field in _OPTIONS})
    lettered = dict(zip(LETTERS, options, strict=True))
    prompt = choice_prompt(question, {letter: text for letter, (_, text) in lettered.items()})
    reference = next(letter for letter, (field, _) in lettered.items() if field == _OPTIONS[0])
    return question, (Message("user", prompt),), reference


def _shuffled(question: str, options: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return field and text of each option, in an order that depends only on the question."""
    return sorted(
        options.items(),
        key=lambda option: hashlib.sha256(f"{question}\0{option}".encode()).digest(),
    )


def choice_prompt(question: str, options: Mapping[str, str]) -> str:
    """Return the user's message, as in Evalchemy (mlfoundations/evalchemy, eval/chat_benchmarks/GPQADiamond)."""
    return (
        "Return your final response within \\boxed{} and only include the letter choice (A, B, C, or D) as your final "
        f"response.\nProblem: {question}\n"
        f"Options: {', '.join(f'{letter}) {text}' for letter, text in options.items())}\nAnswer:"
    )


def is_right_letter(reference: str, text: str) -> bool:
    """Return whether the conclusion's last boxed letter, or else its last "Answer: X", is `reference`.

    The latter is how simple-evals asks for the letter (openai/simple-evals, common.py).
    """
    return _letter(conclusion(text)) == reference


def _letter(text: str) -> str | None:
    r"""Extract `B` from `\boxed{\text{(B)}}`, `\boxed{B) 5 m}` or, without such a box, `**Answer:** B`."""
    for answer in reversed(boxed_answers(text)):
        if match := _BOXED_LETTER.fullmatch(_WRAPPING.sub("", answer)):
            return match[1]
    named = _NAMED_LETTER.findall(text)
    return named[-1] if named else None
