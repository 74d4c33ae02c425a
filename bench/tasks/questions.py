"""Records made into questions."""

import hashlib
from collections.abc import Callable, Sequence

from bench.tasks.protocol import Question
from bench.tasks.source import Row
from semspec.types import Message

Parts = tuple[str, tuple[Message, ...], str]
"""A question's text, its messages and its reference."""


def make_questions(rows: Sequence[Row], id_field: str, parts: Callable[[Row], Parts]) -> list[Question]:
    """Each record's question, in order, named by its `id_field` or, without one, by a digest of its text."""
    questions: list[Question] = []
    taken: set[str] = set()
    for row in rows:
        text, messages, reference = parts(row)
        name = row.text(id_field) if row.has(id_field) else hashlib.sha256(text.encode()).hexdigest()[:12]
        name = _free(name, taken)
        taken.add(name)
        questions.append(Question(name, messages, reference))
    return questions


def _free(name: str, taken: set[str]) -> str:
    """The name, numbered if an earlier question has it."""
    number, candidate = 1, name
    while candidate in taken:
        number += 1
        candidate = f"{name}#{number}"
    return candidate
