"""Rows against arithmetic done by hand, and errors against distributions known beforehand."""

import numpy as np
import pytest

from semspec.errors import InvalidRequest
from semspec_bench.record import Record
from semspec_bench.summary import summarise


def record(label: str, question: int, **other: object) -> Record:
    values: dict[str, object] = {
        "label": label,
        "question": str(question),
        "sample": 0,
        "seed": 1,
        "is_right": True,
        "finish_reason": "stop",
        "latency_s": 1.0,
        "num_prompt_tokens": 10,
        "num_tokens": 100,
        "num_target_tokens": 100,
        "num_accepted": 0,
        "num_rejected": 0,
        "num_proposed_tokens": 0,
        "num_accepted_tokens": 0,
        "stages_ms": {
            "draft_ms": 0.0,
            "read_ms": 0.0,
            "judge_ms": 0.0,
            "write_ms": 900.0,
            "wire_ms": 10.0,
        },
        "text_digest": "same",
        "trace": [],
    }
    return Record(**(values | other))  # type: ignore[arg-type]


def test_row_counts_what_the_records_say() -> None:
    records = [record("target", i, latency_s=2.0) for i in range(4)]
    records += [
        record(
            "semantic",
            i,
            latency_s=0.5,
            is_right=i > 0,
            num_target_tokens=20,
            num_accepted=9,
            num_rejected=1,
        )
        for i in range(4)
    ]
    baseline, row = summarise(records, ["target", "semantic"])
    assert baseline.speedup.value == 1.0
    assert baseline.difference.value == 0.0
    assert baseline.acceptance_rate is None
    assert (row.pass_at_1.value, row.difference.value) == (0.75, -0.25)
    assert row.mcnemar_p == 1.0  # one question lost of one that differs proves nothing
    assert (row.speedup.value, row.speedup.error) == (4.0, 0.0)
    assert (row.target_ratio, row.acceptance_rate, row.num_rounds) == (0.2, 0.9, 10)
    assert row.tokens_per_s == 200
    assert row.stages_ms["other_ms"] == pytest.approx(500 - 900)


def test_only_questions_answered_by_all_count() -> None:
    records = [record("target", i) for i in range(3)] + [record("draft", 1, is_right=False)]
    rows = summarise(records, ["target", "draft"])
    assert [row.num_questions for row in rows] == [1, 1] and np.isnan(rows[1].speedup.error)


def test_several_samples_count_as_one_question() -> None:
    records = [record("target", i, sample=s, is_right=s == 0) for i in range(5) for s in range(2)]
    [row] = summarise(records, ["target"])
    assert (row.num_questions, row.num_samples, row.mcnemar_p) == (5, 2, None)
    assert (row.pass_at_1.value, row.pass_at_1.error) == (0.5, 0.0)


def test_mcnemar_sees_a_one_sided_loss() -> None:
    records = [record("target", i) for i in range(30)] + [
        record("draft", i, is_right=i >= 10) for i in range(30)
    ]
    row = summarise(records, ["target", "draft"])[1]
    assert row.mcnemar_p == pytest.approx(2 * 0.5**10)


def test_errors_agree_with_repetition() -> None:
    rng = np.random.default_rng(0)

    def draw() -> list[Record]:
        slow = [
            record(
                "target", i, latency_s=float(rng.gamma(20, 0.1)), is_right=bool(rng.random() < 0.8)
            )
            for i in range(80)
        ]
        fast = [
            record(
                "semantic",
                i,
                latency_s=float(rng.gamma(20, 0.05)),
                is_right=bool(rng.random() < 0.7),
            )
            for i in range(80)
        ]
        return slow + fast

    rows = [summarise(draw(), ["target", "semantic"])[1] for _ in range(60)]
    for name in ("speedup", "difference", "pass_at_1"):
        values = [getattr(row, name).value for row in rows]
        errors = [getattr(row, name).error for row in rows]
        assert np.mean(errors) == pytest.approx(np.std(values), rel=0.3)


def test_records_that_compare_nothing_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="baseline target"):
        summarise([record("draft", 1)], ["target", "draft"])
    with pytest.raises(InvalidRequest, match="no question"):
        summarise([record("target", 1), record("draft", 2)], ["target", "draft"])
