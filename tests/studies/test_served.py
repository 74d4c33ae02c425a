"""The natural study's tables of served answers, against counts done by hand, and the identity of its runs."""

import gzip
import json
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

from semspec.errors import InvalidRequest
from semspec_bench.record import ANSWERS, Record, read_records, write_answers
from semspec_bench.run import claim
from studies.natural.served import TokenTimes, make_plan, report, without_texts
from tests.bench.test_summary import record


def answers(label: str, right: int, **other: object) -> list[Record]:
    """Two answers to each of 40 questions; both answers to the first `right` questions are right."""
    return [
        record(f"in-process/{label}", question, sample=sample, is_right=question < right, **other)
        for question in range(40)
        for sample in (0, 1)
    ]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_report_counts_questions_with_more_or_fewer_right_answers() -> None:
    target = answers("target", right=20, latency_s=2.0)
    draft = answers("draft", right=12, latency_s=1.0, num_target_tokens=25)
    draft[-1] = record("in-process/draft", 39, sample=1, latency_s=1.0, num_target_tokens=25)
    head, _, _, _, first, second = report(target + draft, is_timed=True)
    assert head.startswith("40 questions, 80 answers")
    assert cells(first)[:1] + cells(first)[2:5] == ["target", "", "", ""]
    label, right, difference, counts, p, share, _, _, speed_up = cells(second)
    assert (label, counts) == ("draft", "1, 8")
    assert right.startswith("31.2% (") and difference.startswith("-18.8% (")
    assert float(p) == pytest.approx(2 * 10 / 2**9, abs=1e-3)  # 0 or 1 of 9, both sides
    assert share == "25.0% (25.0% to 25.0%)" and speed_up == "2.00 (2.00 to 2.00)"


def test_intervals_count_questions_not_answers() -> None:
    [*_, line] = report(answers("target", right=20), is_timed=False)
    low, high = (float(part.strip("%)( ")) for part in cells(line)[1].split("(")[1].split("to"))
    error = np.sqrt(0.25 / 40)
    assert (high - low) / 100 == pytest.approx(2 * 1.96 * error, rel=0.15)
    assert len(cells(line)) == 7


def test_speed_is_computed_from_drafted_and_written_tokens(tmp_path: Path) -> None:
    trace = [
        {"writer": "draft", "num_tokens": 30, "verdict": "accepted", "rejected": None, "text": "a"},
        {
            "writer": "target",
            "num_tokens": 70,
            "verdict": "rewritten",
            "rejected": {"num_tokens": 50, "text": "b"},
            "text": "c",
        },
    ]
    judged = answers("likelihood", right=20, num_target_tokens=70, trace=trace)
    write_answers(
        file := tmp_path / f"kept{ANSWERS}",
        map(without_texts, [*answers("target", right=20), *judged]),
        with_traces=True,
    )
    times = TokenTimes(draft=40, read=18, write=88)
    [*_, line] = report(read_records(file), is_timed=False, times=times)
    assert cells(line)[-2:] == ["38%", f"{100 * 88 / (80 * (40 + 18) + 70 * 88):.2f}"]
    untold = answers("likelihood:gamma=2", right=20, trace=trace)
    [*_, line] = report([*answers("target", right=20), *untold], is_timed=False, times=times)
    assert cells(line)[-2:] == ["", ""]
    assert '"text"' not in gzip.decompress(file.read_bytes()).decode()


def test_report_without_the_targets_answers_is_refused() -> None:
    for records in (answers("draft", right=3), []):
        with pytest.raises(SystemExit, match="the target"):
            list(report(records, is_timed=False))


def test_run_is_not_resumed_with_another_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = tmp_path / "math500.jsonl"
    row = {"problem": "What is 1+1?", "answer": "2", "subject": "Algebra", "level": 1}
    questions.write_text("".join(json.dumps(row) + "\n" for _ in range(5)))
    monkeypatch.setenv("MATH500", str(questions))
    (release := tmp_path / "release").mkdir()
    options = Namespace(
        draft="draft.gguf",
        target="target.gguf",
        release=release,
        part="report",
        strategy=None,
        temperature=0.6,
        samples=2,
        limit=None,
        max_tokens=64,
        sessions=1,
    )
    (release / "pair.json").write_text('{"version": "1"}')
    for _ in range(2):
        claim(tmp_path / "run", make_plan(options))
    (release / "pair.json").write_text('{"version": "2"}')
    with pytest.raises(InvalidRequest, match="holds a run with release"):
        claim(tmp_path / "run", make_plan(options))
