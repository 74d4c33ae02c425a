"""Which questions are taken, and on which side each stands."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from semspec.errors import InvalidRequest
from semspec.training.config import QuestionSource, Shares
from semspec.training.data.questions import gather

SHARES = Shares(validation=0.2, calibration=0.1, test=0.2)


def write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def numbered(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"question": f"What is {n} and {n + 1}?", "id": n} for n in range(start, start + count)]


def test_side_depends_on_the_question_alone(tmp_path: Path) -> None:
    few, many = (
        {question.id: question.split for question in gather([source], (), SHARES)[0]}
        for source in (
            QuestionSource(file=write(tmp_path / "few", numbered(60)), id="id"),
            QuestionSource(file=write(tmp_path / "many", numbered(2000)), id="id"),
        )
    )
    assert all(many[name] == side for name, side in few.items())
    shares = {side: list(many.values()).count(side) / len(many) for side in set(many.values())}
    assert shares == pytest.approx(
        {"train": 0.5, "validation": 0.2, "calibration": 0.1, "test": 0.2}, abs=0.04
    )


def test_question_of_an_evaluation_set_is_dropped_whatever_its_punctuation(tmp_path: Path) -> None:
    long = "A train leaves the station at nine and travels sixty miles every hour until it reaches the far coast."
    repeated = [
        {"question": "what is   7 AND 8 ?", "id": "same"},
        {"question": f"Hard: {long}", "id": "part"},
    ]
    evaluation = [{"problem": "What is 7 and 8?"}, {"problem": long}]
    questions, dropped = gather(
        [QuestionSource(file=write(tmp_path / "a", numbered(60) + repeated), id="id")],
        [QuestionSource(file=write(tmp_path / "b", evaluation), question="problem")],
        SHARES,
    )
    assert {one.id for one in dropped} == {"7", "same", "part"}
    assert not {"7", "same", "part"} & {question.id for question in questions}
    assert "8-grams stand in" in next(one.reason for one in dropped if one.id == "part")


def test_training_question_that_repeats_a_test_question_is_the_one_to_go(tmp_path: Path) -> None:
    train = QuestionSource(file=write(tmp_path / "a", numbered(60)), id="id")
    rows = [row | {"id": f"t{row['id']}"} for row in numbered(3, start=50)]
    test = QuestionSource(file=write(tmp_path / "b", rows), id="id", role="test", domain="d")
    questions, dropped = gather([train, test], (), SHARES)
    assert [one.id for one in dropped] == ["50", "51", "52"]
    assert [q.id for q in questions if q.split == "test"] == ["t50", "t51", "t52"]
    assert {q.domain for q in questions if q.split == "test"} == {"d"}


def test_dataset_folder_is_read_through_datasets(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    rows = [
        {"question": f"Why {n}?", "kind": "odd" if n % 2 else "even", "thoughts": f"{n}."}
        for n in range(60)
    ]
    write(folder / "train.jsonl", rows)
    source = QuestionSource(hub=str(folder), domain_field="kind", trace="thoughts", limit=50)
    questions, _ = gather([source], (), SHARES)
    assert len(questions) == 50
    assert {(q.text, q.domain, q.trace) for q in questions} >= {
        ("Why 3?", "odd", "3."),
        ("Why 4?", "even", "4."),
    }


@pytest.mark.parametrize(
    ("content", "source", "complaint"),
    [
        ('{"problem": "x"}', {}, "row 1, has no field question; it has problem: name one of those"),
        ('{"question": "x"}', {"trace": "cot"}, "row 1, has no field cot; it has question"),
        ('{"question": "x"}', {}, "1 questions leave none for"),
        ("", {"file": None, "hub": "./none"}, "cannot load dataset"),
        (
            "",
            {"file": None, "python": "semspec_demo.probe_data:no"},
            "cannot find semspec_demo.probe_data:no",
        ),
    ],
)
def test_unusable_source_is_refused_by_name(
    tmp_path: Path,
    content: str,
    source: dict[str, str | None],
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("questions.jsonl").write_text(content)
    with pytest.raises(InvalidRequest) as caught:
        gather([QuestionSource.model_validate({"file": "questions.jsonl", **source})], (), SHARES)
    assert complaint in str(caught.value)
