"""The simulator against closed forms and conservation laws, and what it refuses."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from semspec.errors import InvalidRequest
from semspec.types import Writer
from semspec_bench.pace.table import load_pace
from studies.simulate.engines import Host
from studies.simulate.layouts import measured_times
from studies.simulate.simulator import Setup, simulate
from studies.simulate.workload import Answer, Planned, Workload, recorded

PACE = load_pace("h100-1.5b-32b")
HOST = Host(call_ms=3.0, judge_ms=5.0, answer_ms=7.0)
PROMPT, LENGTH, NUM = 50, 20, 6


def answer(is_accepted: bool = True, rewritten: int = LENGTH) -> Answer:
    return Answer(PROMPT, (Planned(LENGTH, rewritten, is_accepted),) * NUM)


def one(strategy: str, is_accepted: bool = True, **changes: object) -> float:
    """Latency of one answer in ms."""
    setup = replace(Setup(PACE, strategy, host=HOST), **changes)  # type: ignore[arg-type]
    return 1e3 * simulate(setup, [answer(is_accepted)]).mean_latency_s


def draft_ms(num_tokens: int = 1) -> float:
    return PACE.draft.step_ms(1, num_tokens)


def target_ms(num_tokens: int = 1) -> float:
    return PACE.target.step_ms(1, num_tokens)


@pytest.mark.parametrize(("strategy", "step_ms"), [("target", target_ms), ("draft", draft_ms)])
def test_one_model_alone_takes_its_prompt_and_a_step_a_token(
    strategy: str, step_ms: Callable[..., float]
) -> None:
    expected = HOST.answer_ms + HOST.call_ms + step_ms(PROMPT) + NUM * LENGTH * step_ms()
    assert one(strategy) == pytest.approx(expected)


def test_accepted_rounds_in_turn_are_drafts_reads_and_judgements() -> None:
    prompts = draft_ms(PROMPT) + target_ms(PROMPT + LENGTH) - target_ms(LENGTH)
    each = 2 * HOST.call_ms + LENGTH * draft_ms() + target_ms(LENGTH) + HOST.judge_ms
    assert one("semantic", draft_ahead=False) == pytest.approx(
        HOST.answer_ms + prompts + NUM * each
    )


def test_rejected_rounds_are_rewritten_and_read_again_by_the_draft() -> None:
    prompts = draft_ms(PROMPT) + target_ms(PROMPT + LENGTH) - target_ms(LENGTH)
    read_again = (NUM - 1) * draft_ms(LENGTH)
    each = (
        3 * HOST.call_ms + LENGTH * (draft_ms() + target_ms()) + target_ms(LENGTH) + HOST.judge_ms
    )
    expected = HOST.answer_ms + prompts + read_again + NUM * each
    assert one("semantic", is_accepted=False, draft_ahead=False) == pytest.approx(expected)


def test_drafting_ahead_hides_behind_reading_and_judging() -> None:
    """The draft takes longer than reading and judging, so it is what each round but the first and last waits for."""
    first = HOST.answer_ms + HOST.call_ms + draft_ms(PROMPT)
    last = HOST.call_ms + target_ms(LENGTH) + HOST.judge_ms
    expected = first + NUM * LENGTH * draft_ms() + (NUM - 1) * HOST.call_ms + last
    assert LENGTH * draft_ms() > target_ms(PROMPT + LENGTH) + HOST.judge_ms
    assert one("semantic") == pytest.approx(expected)


def test_steps_on_a_shared_gpu_add_but_for_idle_time() -> None:
    """Beside reading, the draft is delayed by what the target takes of the GPU; reading ends before the draft."""
    reads = target_ms(PROMPT + LENGTH) + (NUM - 2) * target_ms(LENGTH)
    colocated = replace(PACE, is_colocated=True)
    assert one("semantic", pace=colocated) == pytest.approx(one("semantic") + reads)
    assert one("semantic") < one("semantic", pace=colocated, idle_ms=1.0) < one("semantic") + reads
    assert one("semantic", pace=colocated, draft_ahead=False) == pytest.approx(
        one("semantic", draft_ahead=False)
    )


def test_answers_that_do_not_fit_wait() -> None:
    setup = Setup(PACE, "target", 4, host=HOST, num_fitting=2)
    two = simulate(replace(setup, num_sessions=2), [answer()] * 2).latencies_s
    assert simulate(setup, [answer()] * 4).latencies_s == pytest.approx(
        [*two, *(2 * one for one in two)]
    )


def test_two_segments_a_round_halve_reads_and_judgements() -> None:
    prompts = draft_ms(PROMPT) + target_ms(PROMPT + 2 * LENGTH) - target_ms(2 * LENGTH)
    each = 2 * HOST.call_ms + 2 * LENGTH * draft_ms() + target_ms(2 * LENGTH) + HOST.judge_ms
    assert one("semantic", gamma=2, draft_ahead=False) == pytest.approx(
        HOST.answer_ms + prompts + NUM / 2 * each
    )


def test_sessions_in_step_share_the_steps_of_the_target() -> None:
    setup = Setup(PACE, "target", 8, host=Host(0.0, 0.0, 0.0))
    result = simulate(setup, [answer()] * 8)
    expected = PACE.target.step_ms(8, 8 * PROMPT) + NUM * LENGTH * PACE.target.step_ms(8, 8)
    assert result.latencies_s == pytest.approx([expected / 1e3] * 8)
    assert result.num_steps == {Writer.DRAFT: 0, Writer.TARGET: 1 + NUM * LENGTH}
    assert result.utilisation[Writer.TARGET] == pytest.approx(1)


@pytest.mark.parametrize("strategy", ["target", "draft", "semantic"])
@pytest.mark.parametrize("num_sessions", [1, 5])
def test_all_tokens_are_written_once_and_no_engine_works_more_than_all_the_time(
    strategy: str, num_sessions: int
) -> None:
    answers = Workload(answer_tokens=200, segment_tokens=20, acceptance=0.7).answers(
        2 * num_sessions
    )
    result = simulate(Setup(PACE, strategy, num_sessions, host=HOST), answers)
    assert result.num_tokens == 2 * num_sessions * 200
    assert len(result.latencies_s) == 2 * num_sessions
    assert all(0 <= share <= 1 + 1e-9 for share in result.utilisation.values())
    assert sum(result.latencies_s) <= num_sessions * result.wall_s + 1e-9
    assert (result.target_ratio == 1) is (strategy == "target") and (result.target_ratio == 0) is (
        strategy == "draft"
    )


def test_host_counts_less_in_a_dilated_run() -> None:
    engines_s = one("semantic", host=Host(0.0, 0.0, 0.0), draft_ahead=False)
    whole, dilated = (one("semantic", dilation=k, draft_ahead=False) for k in (1.0, 4.0))
    assert dilated - engines_s == pytest.approx((whole - engines_s) / 4)


def test_stated_lengths_and_acceptance_are_met() -> None:
    answers = Workload(segment_tokens=30, acceptance=0.8, answer_tokens=3000).answers(20)
    segments = [one for answer in answers for one in answer.segments]
    assert all(sum(one.draft_tokens for one in answer.segments) == 3000 for answer in answers)
    assert sum(one.draft_tokens for one in segments) / len(segments) == pytest.approx(30, rel=0.05)
    assert sum(one.is_accepted for one in segments) / len(segments) == pytest.approx(0.8, abs=0.04)


@pytest.mark.parametrize(
    ("role", "num_sequences", "num_tokens", "step_ms"),
    [
        ("target", 1, 1, 28.635),
        ("target", 1, 20, 39.34),
        ("target", 1, 40, 39.34),  # 38.865 were measured: no less than a smaller read
        ("target", 8, 160, 106.355),
        ("target", 32, 32, 34.904),
        ("draft", 1, 1, 4.114),
        ("draft", 8, 8, 5.694),
    ],
)
def test_measured_steps_are_the_medians_of_the_run(
    role: str, num_sequences: int, num_tokens: int, step_ms: float
) -> None:
    assert measured_times(role).step_ms(num_sequences, num_tokens) == pytest.approx(step_ms)


def test_label_without_traces_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no traces of likelihood"):
        recorded([], "likelihood")
