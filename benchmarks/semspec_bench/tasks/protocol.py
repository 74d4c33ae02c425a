"""A task: questions and their grader."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from semspec.types import Message


@dataclass(frozen=True, slots=True)
class Question:
    """One question with its right answer."""

    id: str
    """Unique within the task, the same in every run."""
    messages: tuple[Message, ...]
    """Messages for the chat template."""
    reference: str
    """The right answer, in the grader's format."""


Grade = Callable[[str, str], bool]
"""(question's reference, answer's text with reasoning) -> whether the answer is right."""


@dataclass(frozen=True, slots=True)
class Task:
    """Questions and their grader. The defaults are those of the published results: temperature, top_p and budget of
    DeepSeek-R1's model card ("Evaluation Results")."""

    name: str
    questions: Sequence[Question]
    grade: Grade
    max_tokens: int = 32_768
    """Budget of an answer, reasoning included."""
    temperature: float = 0.6
    top_p: float = 0.95

    def is_right(self, question: Question, text: str) -> bool:
        """Return whether `text`, reasoning included, ends with the right answer. It never raises."""
        return self.grade(question.reference, text)
