"""What a task is: questions, and who says which answers are right."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

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


class Task(Protocol):
    """Questions and their grader. The defaults are those of the published results."""

    @property
    def name(self) -> str: ...

    @property
    def max_tokens(self) -> int:
        """Budget of an answer, reasoning included."""
        ...

    @property
    def temperature(self) -> float: ...

    @property
    def top_p(self) -> float: ...

    def questions(self) -> Sequence[Question]: ...

    def is_right(self, question: Question, text: str) -> bool:
        """Whether `text`, reasoning included, ends in the right answer. No text makes it raise."""
        ...


Grade = Callable[[str, str], bool]
"""From a question's reference and an answer's text, reasoning included, to whether it is right."""


@dataclass(frozen=True, slots=True)
class LoadedTask:
    """A `Task` whose questions are in memory.

    Temperature, top_p and budget are those of DeepSeek-R1's model card ("Evaluation Results").
    """

    name: str
    asked: Sequence[Question]
    grade: Grade
    max_tokens: int = 32_768
    temperature: float = 0.6
    top_p: float = 0.95

    def questions(self) -> Sequence[Question]:
        return self.asked

    def is_right(self, question: Question, text: str) -> bool:
        return self.grade(question.reference, text)
