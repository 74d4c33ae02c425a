"""What a task is: questions, and who says which answers are right."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from semspec.types import Message


@dataclass(frozen=True, slots=True)
class Question:
    """One question with its right answer."""

    id: str
    """Unique within the task, the same in every run."""
    messages: tuple[Message, ...]
    """Ready for the chat template."""
    reference: str
    """The right answer, as answers are graded against it."""


Grade = Callable[[str, str], bool]
"""From a question's reference and an answer's text, reasoning included, to whether it is right."""


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
        """Whether `text`, reasoning included, ends in the right answer. No text makes it raise."""
        return self.grade(question.reference, text)
