"""What was promised, what came of it, and what is written of it are one table."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.asking import Answer
from tests.chaos.faults import TABLE, Fault, Promise
from tests.chaos.report import Report
from tests.chaos.trial import Outcome, Trial, misfit

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
RECORDS = [{"index": index, "text": f"segment {index}"} for index in range(3)]
ANSWER = Answer("id", "text", [*RECORDS], None, False)
SAME, ALONE, DEGRADED = (
    next(fault for fault in TABLE if fault.promise is promise)
    for promise in (Promise.SAME, Promise.ALONE, Promise.DEGRADED)
)


def test_page_promises_what_is_tested() -> None:
    _, _, rest = PAGE.read_text().partition("| fault | how it is made | what is promised |\n|---|---|---|\n")
    promised = rest.partition("\n\n")[0].splitlines()
    assert promised == [f"| {fault.name} | {fault.how} | {fault.promise} |" for fault in TABLE]


def test_faults_have_names_of_their_own() -> None:
    assert len({fault.name for fault in TABLE}) == len(TABLE)


@pytest.mark.parametrize(
    ("fault", "outcome", "is_kept"),
    [
        (SAME, Outcome(1, ANSWER), True),
        (SAME, Outcome(1, replace(ANSWER, fallback="the draft is gone")), False),
        (ALONE, Outcome(1, replace(ANSWER, fallback="the draft is gone")), True),
        (ALONE, Outcome(1, replace(ANSWER, degraded=True)), False),
        (DEGRADED, Outcome(1, replace(ANSWER, degraded=True)), True),
        (DEGRADED, Outcome(1, ANSWER, 1.0, "another answer", differs=True), False),
        (ALONE, Outcome(1, None, 1.0, "Unavailable: gone"), False),
    ],
)
def test_promise_is_kept_by_what_it_names_alone(fault: Fault, outcome: Outcome, is_kept: bool) -> None:
    assert (Trial(fault, [Outcome(2, ANSWER), outcome], 1, 1.0).complaints == []) is is_kept


def test_promise_is_broken_when_nothing_is_served_again() -> None:
    assert Trial(SAME, [Outcome(1, ANSWER)], 1, math.inf).complaints != []


def test_fault_that_comes_too_late_proves_nothing() -> None:
    assert Trial(SAME, [Outcome(1, ANSWER)], 0, 1.0).complaints == ["all was over before the fault came"]


@pytest.mark.parametrize(
    ("degraded", "status", "stored", "is_right"),
    [
        (False, "finished", RECORDS, True),
        (False, "running", RECORDS, False),
        (False, "finished", RECORDS[:2], False),
        (False, "finished", [*RECORDS, RECORDS[2]], False),
        (False, "finished", [RECORDS[0], RECORDS[2]], False),
        (False, "finished", [*RECORDS[:2], {"index": 2, "text": "another"}], False),
        (True, "running", RECORDS[:2], True),
        (True, "", [], True),
        (True, "finished", RECORDS[1:], False),
    ],
)
def test_store_has_each_segment_once_as_it_was_told(
    degraded: bool, status: str, stored: list[dict[str, object]], is_right: bool
) -> None:
    assert (misfit(replace(ANSWER, degraded=degraded), status, stored) == "") is is_right


def test_report_counts_what_came_of_the_trials(tmp_path: Path) -> None:
    report = Report.empty(1.0, 0.5)
    lost, fell_back = (
        Outcome(1, None, 1.0, "Unavailable: gone"),
        Outcome(2, replace(ANSWER, fallback="the draft is gone")),
    )
    report.rows[ALONE.name].trials += [
        Trial(ALONE, [lost, fell_back], 2, 2.0, 0.5, 0.75),
        Trial(ALONE, [Outcome(1, ANSWER, 3.0)], 1, 4.0, 0.5, 0.25),
    ]
    report.write(tmp_path, 60)
    page, numbers = (tmp_path / "README.md").read_text(), json.loads((tmp_path / "faults.json").read_text())
    assert f"| {ALONE.name} | 2 | 2 | 1 | 1 | 0 | 1 | 0 | 0 | 3.0 | 0.5 | 0.5 | 3.0 | 4.0 |" in page
    assert f"- {ALONE.name}: seed 1: Unavailable: gone" in page and "Every promise was kept" not in page
    row = next(row for row in numbers["faults"] if row["name"] == ALONE.name)
    assert (row["made"], row["success"], row["failed"], row["lost"]) == (2, 2, 1, 1)
    assert (row["latency_after_s"], row["recovery_s"]) == ([0.75, 0.25], [2.0, 4.0])
