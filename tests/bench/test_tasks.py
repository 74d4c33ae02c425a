"""Tasks: where their questions come from, how they are put, and which answers are right."""

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import pytest

from semspec.errors import InvalidRequest
from semspec.types import Message
from semspec_bench.tasks import TASKS, Question, Task, load_task
from semspec_demo.problems import SPLITS, make_problem

MATH = [
    {
        "problem": "What is $1+1$?",
        "answer": "2",
        "solution": "It is $\\boxed{2}$.",
        "unique_id": "test/algebra/1.json",
    },
    {"problem": "Half of $x$?", "answer": "\\frac{x}{2}", "unique_id": "test/algebra/2.json"},
    {
        "problem": "Polar, of $(0,3)$?",
        "answer": "\\left( 3, \\frac{\\pi}{2} \\right)",
        "unique_id": "test/pre/3.json",
    },
]
CHOICE = [
    {
        "Question": f"Which number is {number}?",
        "Correct Answer": str(number),
        **{f"Incorrect Answer {place}": str(number + place) for place in (1, 2, 3)},
        "Record ID": f"rec{number}",
    }
    for number in range(0, 80, 4)
]


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture(scope="module")
def mathematics(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return load_task("math500", write(tmp_path_factory.mktemp("math") / "math.jsonl", MATH))


def refusal(name: str, **arguments: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        load_task(name, **arguments)
    return str(caught.value)


def test_demo_asks_the_split_by_seed_and_grades_exactly() -> None:
    for name, split in (("demo", "report"), ("demo-tune", "tune")):
        task = load_task(name, limit=3)
        questions = task.questions
        assert [question.id for question in questions] == [str(seed) for seed in SPLITS[split][:3]]
        problem = make_problem(int(questions[0].id))
        assert questions[0].messages == (Message("user", problem.question),)
        assert task.is_right(questions[0], f"So \\boxed{{1}}, no: \\boxed{{{problem.answer}}}")
        assert not task.is_right(questions[0], f"So \\boxed{{{problem.answer + 1}}}")
        assert not task.is_right(questions[0], f"So {problem.answer}")


def test_mathematics_is_asked_in_one_user_turn(mathematics: Task) -> None:
    question = mathematics.questions[0]
    assert question == Question(
        "test/algebra/1.json",
        (
            Message(
                "user",
                "What is $1+1$?\nPlease reason step by step, and put your final answer within \\boxed{}.",
            ),
        ),
        "2",
    )


def test_reference_solutions_are_right(mathematics: Task) -> None:
    for question in mathematics.questions:
        assert mathematics.is_right(
            question, f"<think>\\boxed{{-9}}</think>Hence $\\boxed{{{question.reference}}}$."
        )
    first, second, _ = mathematics.questions
    assert mathematics.is_right(first, str(MATH[0]["solution"]))
    assert not mathematics.is_right(second, str(MATH[0]["solution"]))


def test_competition_records_need_no_solution(tmp_path: Path) -> None:
    rows = [
        {"id": 7, "question": "How far?", "answer": 27.0},
        {"id": 8, "question": "How long?", "answer": 2.5},
    ]
    task = load_task("amc23", write(tmp_path / "amc.jsonl", rows))
    assert [(question.id, question.reference) for question in task.questions] == [
        ("7", "27"),
        ("8", "2.5"),
    ]
    assert task.is_right(task.questions[0], "\\boxed{27}")
    assert task.is_right(task.questions[1], "\\boxed{5/2}")


def test_equal_questions_get_distinct_ids_that_no_limit_changes(tmp_path: Path) -> None:
    rows = [
        {"problem": "a", "answer": "1"},
        {"problem": "a", "answer": "1"},
        {"problem": "b", "answer": "2", "unique_id": "x#2"},
        {"problem": "c", "answer": "3", "unique_id": "x"},
        {"problem": "d", "answer": "4", "unique_id": "x"},
    ]
    data = write(tmp_path / "math.jsonl", rows)
    identifiers = [question.id for question in load_task("math500", data).questions]
    assert len(set(identifiers)) == 5 and identifiers[2:] == ["x#2", "x", "x#3"]
    window = load_task("math500", data, limit=3).questions
    assert [question.id for question in window] == identifiers[:3]


def test_choices_are_shuffled_by_question_alone(tmp_path: Path) -> None:
    whole = load_task("gpqa-diamond", write(tmp_path / "a.jsonl", CHOICE)).questions
    assert {question.reference for question in whole} == set("ABCD")
    shuffled = random.Random(0).sample(CHOICE, len(CHOICE))
    again = load_task("gpqa-diamond", write(tmp_path / "b.jsonl", shuffled), limit=5).questions
    assert {question.id: question for question in whole}.items() >= {
        question.id: question for question in again
    }.items()


def test_choice_is_put_as_published_and_its_letter_is_the_correct_option(tmp_path: Path) -> None:
    task = load_task("gpqa-diamond", write(tmp_path / "gpqa.jsonl", CHOICE))
    for number, question in zip(range(0, 80, 4), task.questions, strict=True):
        [turn] = question.messages
        assert turn.content.startswith(
            "Return your final response within \\boxed{} and only include the letter choice"
        )
        options = turn.content.partition("Options: ")[2].removesuffix("\nAnswer:").split(", ")
        assert sorted(option[3:] for option in options) == sorted(
            str(number + place) for place in range(4)
        )
        assert f"{question.reference}) {number}" in options
        assert task.is_right(question, f"\\boxed{{{question.reference}}}")


def test_what_no_task_can_ask_is_refused(tmp_path: Path) -> None:
    data, missing = write(tmp_path / "math.jsonl", MATH), str(tmp_path / "none.txt")
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("gsm8k", {}, ", ".join(TASKS)),
        ("demo", {"data": "questions.jsonl"}, "leave --data out"),
        ("math500", {"data": data, "limit": 4}, "limit is 4; math500 has 3 questions"),
        ("math500", {"data": data, "limit": 0}, "limit is 0"),
        ("math500", {"data": missing}, f"cannot read {missing}"),
        ("math500", {"data": "none.jsonl"}, "cannot read none.jsonl"),
        ("math500", {"data": "a/b/c"}, "cannot read a/b/c"),
    ]
    for name, arguments, complaint in cases:
        assert complaint in refusal(name, **arguments)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (
            '{"problem": "a", "answer": "1"}\n{"Problem": "b", "answer": "1"}',
            ":2 has no field problem",
        ),
        ('{"problem": "a", "gold": "1"}', ":1 has no field answer; its fields are problem, gold"),
        ('{"problem": "a", "answer": ""}', ":1: field answer must be text or a number, not ''"),
        ('{"problem": "a", "answer": ["1"]}', ":1: field answer must be text or a number"),
        ('{"problem": "a", "answer": "1"}\n{"problem":', ":2 is not JSON"),
        ("[]", ":1 is not a JSON object"),
        ("\n\n", "contains no question"),
        ("\xff", "is not UTF-8"),
    ],
)
def test_unusable_file_is_refused_by_line(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(content.encode("latin-1"))
    message = refusal("math500", data=str(path))
    assert complaint in message and str(path) in message


def test_dataset_in_a_folder_is_read_from_the_only_split_it_has(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", MATH)
    assert len(load_task("math500", str(tmp_path)).questions) == 3
    write(tmp_path / "validation.jsonl", MATH)
    assert "has no split 'test', but train, validation" in refusal("math500", data=str(tmp_path))


def test_own_dataset_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(name: str, config: str | None) -> dict[str, list[dict[str, str]]]:
        asked.append((name, config))
        return {"test": MATH, "train": CHOICE}

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert load_task("math500").questions[0].id == "test/algebra/1.json"
    assert load_task("gpqa-diamond").questions[0].id == "rec0"
    assert "HuggingFaceH4/aime_2024, row 1 has no field problem" in refusal("aime24")
    assert asked == [
        ("HuggingFaceH4/MATH-500", None),
        ("Idavidrein/gpqa", "gpqa_diamond"),
        ("HuggingFaceH4/aime_2024", None),
    ]
