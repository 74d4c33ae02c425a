"""Graders: which texts state the right answer, whatever a model writes."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from semspec.errors import InternalError
from semspec_bench.tasks import Question, Task, load_task
from semspec_bench.tasks.choice import is_right_letter
from semspec_bench.tasks.mathematics import Judge


@pytest.fixture(scope="module")
def mathematics(tmp_path_factory: pytest.TempPathFactory) -> Task:
    path = tmp_path_factory.mktemp("mathematics") / "questions.jsonl"
    path.write_text('{"problem": "What is $1+1$?", "answer": "2"}')
    return load_task("math500", str(path))


def is_right(task: Task, reference: str, text: str) -> bool:
    return task.is_right(Question("0", (), reference), text)


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        ("27", "27.0 it is: $\\boxed{27.0}$"),
        ("033", "\\boxed{33}"),
        ("\\frac{3}{4}", "\\boxed{0.75}"),
        ("\\frac{3}{4}", "$$\\boxed{\\dfrac34}$$"),
        ("\\text{(C)}", "\\boxed{C}"),
        ("2\\sqrt{3}", "\\boxed{\\sqrt{12}}"),
        ("90^\\circ", "\\boxed{90}"),
        ("1,200", "\\boxed{1200}"),
        ("104", "\\boxed{104.}"),
        ("5", "\\boxed{x = 5}"),
        ("3", "\\boxed{4} is wrong. \\boxed{3} is right; it belongs into \\boxed{}."),
        ("1,-2", "$x = \\boxed{1}$ and $\\boxed{-2}$"),
        ("5", "The final answer is $5$."),
        ("5", "**Answer:** 5"),
    ],
)
def test_mathematically_equal_answer_is_right(mathematics: Task, reference: str, text: str) -> None:
    assert is_right(mathematics, reference, text)


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        ("27", ""),
        ("27", "I do not know."),
        ("27", "We have 27 apples and 3 days, so"),
        ("27", "\\boxed{27"),
        ("27", "\\boxed{27} </think> \\boxed{28}"),
        ("27", "\\boxed{27} </think> I give up."),
        ("4", "\\boxed{3} Wait, \\boxed{4}. No: \\boxed{3}"),
        ("(3,5)", "\\boxed{(5,3)}"),
        ("\\text{even}", "\\boxed{\\text{odd}}"),
        ("27", "\\boxed{\\frac{27}{}}}} \x00 \udc80 \\boxed{\\\\{}"),
        ("27", "\\boxed{" + "(" * 300 + "27"),
    ],
)
def test_other_or_no_answer_is_wrong(mathematics: Task, reference: str, text: str) -> None:
    assert not is_right(mathematics, reference, text)


def test_grading_works_in_any_thread(mathematics: Task) -> None:
    with ThreadPoolExecutor(4) as pool:
        graded = pool.map(lambda n: is_right(mathematics, "6", f"\\boxed{{{n}}}"), range(5, 9))
    assert list(graded) == [False, True, False, False]


WORKER = """
import json, sys, time
print("ready", flush=True)
for line in sys.stdin:
    reference, text = json.loads(line)
    if text == "stuck":
        time.sleep(600)
    if text == "crash":
        sys.exit("as asked")
    print(json.dumps(reference == text), flush=True)
"""


def test_answer_that_kills_the_worker_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    judge = Judge(limit_s=3.0, script=tmp_path / "worker.py")
    long = "9" * 200_000  # more than a pipe holds
    for text, expected in (
        ("5", True),
        ("stuck", False),
        ("5", True),
        ("crash", False),
        ("5", True),
        ("6", False),
    ):
        assert judge.is_equivalent("5", text) is expected
    assert judge.is_equivalent(long, long)


def test_worker_that_does_not_start_is_an_error_not_a_verdict(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text("raise SystemExit('no')")
    with pytest.raises(InternalError, match="does not start"):
        Judge(script=tmp_path / "worker.py").is_equivalent("5", "5")


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{B}",
        "\\boxed{A}, no: $\\boxed{\\text{(B)}}$",
        "<think>\\boxed{C}</think> \\boxed{\\mathrm{B}}",
        "\\boxed{B) 5 m}",
        "\\boxed{B} for \\boxed{5 m}",
        "Answer: C. Sorry.\n**Answer:** B",
        "ANSWER: $B$",
    ],
)
def test_letter_is_found_as_models_write_it(text: str) -> None:
    assert is_right_letter("B", text) and not is_right_letter("C", text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "B",
        "\\boxed{B} </think> \\boxed{C}",
        "\\boxed{Both}",
        "\\boxed{A} and \\boxed{B}",
        "Answer: Boron",
    ],
)
def test_no_or_another_letter_is_wrong(text: str) -> None:
    assert not is_right_letter("B", text)
