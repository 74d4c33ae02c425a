"""Mathematics with an answer that is right or wrong: MATH-500, AIME 2024, AMC 2023."""

from importlib.util import find_spec

from bench.tasks.answers import boxed_answers, conclusion
from bench.tasks.equivalence import Judge
from bench.tasks.protocol import LoadedTask
from bench.tasks.questions import make_questions
from bench.tasks.source import HubDataset, Row, read_rows
from semspec.errors import InvalidRequest
from semspec.types import Message

MATH_500 = HubDataset("HuggingFaceH4/MATH-500", "test")
AIME_2024 = HubDataset("HuggingFaceH4/aime_2024", "train")
AMC_2023 = HubDataset("math-ai/amc23", "test")

INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."
"""In the user's turn, without a system prompt: DeepSeek-R1's model card, "Usage Recommendations"."""


def load_mathematics(name: str, own: HubDataset, id_field: str, data: str | None) -> LoadedTask:
    """The task of a dataset with questions and answers. Raises: InvalidRequest, see `read_rows` and `Row.text`."""
    if find_spec("math_verify") is None:
        raise InvalidRequest(f"{name} is graded by math-verify: pip install 'semspec[bench]'", "task")
    questions = make_questions(read_rows(own, data), id_field, _parts)
    judge = Judge()
    return LoadedTask(name, questions, lambda reference, text: judge.is_equivalent(reference, stated_answer(text)))


def _parts(row: Row) -> tuple[str, tuple[Message, ...], str]:
    question = row.text("problem", "question")
    return question, (Message("user", f"{question}\n{INSTRUCTION}"),), row.text("answer")


def stated_answer(text: str) -> str:
    """The conclusion's last boxed answer, in its box; without one the whole conclusion, for "the answer is 5"."""
    text = conclusion(text)
    boxes = boxed_answers(text)
    return f"\\boxed{{{boxes[-1].rstrip('.')}}}" if boxes else text
