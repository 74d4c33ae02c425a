"""What is counted of an overload."""

from typing import Any

import pytest

from studies.overload.asking import HUNG, STAGES, Answer, Visit
from studies.overload.report import REFUSED, Overload, facts, speeds


def visit(stage: str, *codes: str, owner: Any = "greedy", service_s: float = 1.0) -> Visit:
    attempts = tuple(Answer(3.0, code, 2.0 if code else None, 2.5, None if code else service_s, 40) for code in codes)
    return Visit(stage, owner, attempts)


@pytest.fixture
def overload() -> Overload:
    visits = [visit("1x", "", service_s=1.0 + 0.1 * (i % 2)) for i in range(20)]
    visits += [visit("2x", REFUSED, "", service_s=1.2 + 0.1 * (i % 2)) for i in range(20)]
    visits += [visit("2x", REFUSED, REFUSED, REFUSED), visit("2x", HUNG, owner="modest")]
    return Overload([4.0], [visit("", "").last, visit("", "").last], STAGES[1:3], visits)


def test_outcomes_are_counted_by_what_became_of_the_last_attempt(overload: Overload) -> None:
    found = facts(overload.of(STAGES[2]))
    counts = {name: number for name, number in found.items() if name.startswith("num_") and number}
    assert counts == {
        "num_requests": 22,
        "num_answered": 20,
        "num_refused": 1,
        "num_hung": 1,
        "num_attempts": 44,
        "num_attempts_refused": 23,
    }
    assert found["wait_s"]["p50"] == pytest.approx(1.75) and found["latency_s"]["p99"] == 3.0
    assert found["first_segment_after_wait_s"]["p50"] == pytest.approx(0.75)


def test_speed_is_compared_from_admission_on(overload: Overload) -> None:
    assert speeds(overload)["2x over 1x"].value == pytest.approx(1.25 / 1.05)
    assert speeds(overload)["2x over full"].value == pytest.approx(1.25)
