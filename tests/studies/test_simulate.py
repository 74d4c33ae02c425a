"""The simulator against closed forms and conservation laws, and what it refuses."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from semspec.types import Writer
from semspec_bench.gpu.shapes import PAPER
from studies.simulate import bounds, load
from studies.simulate.engines import Host
from studies.simulate.layouts import MEASUREMENTS, measured_times, setup_of
from studies.simulate.roofline import H100, drafting, fitted_times, step_ms
from studies.simulate.simulator import Setup, simulate
from studies.simulate.times import StepTimes
from studies.simulate.workload import Answer, Planned, Workload

SEPARATE = setup_of("separate", 2048, 4.1).layout
HOST = Host(call_ms=3.0, judge_ms=5.0, answer_ms=7.0)
PROMPT, LENGTH, NUM = 50, 20, 6


def answer(is_accepted: bool = True, rewritten: int = LENGTH) -> Answer:
    return Answer(PROMPT, (Planned(LENGTH, rewritten, is_accepted),) * NUM)


def one(strategy: str, is_accepted: bool = True, **changes: object) -> float:
    """Latency of one answer in ms."""
    setup = replace(Setup(SEPARATE, strategy, host=HOST), **changes)  # type: ignore[arg-type]
    [latency_s] = simulate(setup, [answer(is_accepted)]).latencies_s
    return 1e3 * latency_s


def draft_ms(num_tokens: int = 1) -> float:
    return SEPARATE.draft.step_ms(1, num_tokens)


def target_ms(num_tokens: int = 1) -> float:
    return SEPARATE.target.step_ms(1, num_tokens)


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
    colocated = replace(SEPARATE, is_colocated=True)
    assert one("semantic", layout=colocated) == pytest.approx(one("semantic") + reads)
    assert (
        one("semantic") < one("semantic", layout=colocated, idle_ms=1.0) < one("semantic") + reads
    )
    assert one("semantic", layout=colocated, draft_ahead=False) == pytest.approx(
        one("semantic", draft_ahead=False)
    )


def test_answers_that_do_not_fit_wait() -> None:
    setup = Setup(SEPARATE, "target", 4, host=HOST, num_fitting=2)
    two = simulate(replace(setup, num_sessions=2), [answer()] * 2).latencies_s
    assert simulate(setup, [answer()] * 4).latencies_s == pytest.approx(
        [*two, *(2 * one for one in two)]
    )


def test_sessions_in_step_share_the_steps_of_the_target() -> None:
    setup = Setup(SEPARATE, "target", 8, host=Host(0.0, 0.0, 0.0))
    result = simulate(setup, [answer()] * 8)
    expected = SEPARATE.target.step_ms(8, 8 * PROMPT) + NUM * LENGTH * SEPARATE.target.step_ms(8, 8)
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
    result = simulate(Setup(SEPARATE, strategy, num_sessions, host=HOST), answers)
    assert result.num_tokens == 2 * num_sessions * 200
    assert len(result.latencies_s) == 2 * num_sessions
    assert all(0 <= share <= 1 + 1e-9 for share in result.utilisation.values())
    assert sum(result.latencies_s) <= num_sessions * result.wall_s + 1e-9


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


def test_times_between_points_are_linear_and_constant_beyond() -> None:
    times = StepTimes(
        1, {1: [(0, 10), (512, 30)], 2: [(0, 12), (512, 32)], 256: [(0, 50), (512, 70)]}
    )
    assert times.step_ms(1, 1) == 10 and times.step_ms(256, 768) == 70
    assert times.step_ms(1, 257) == 20  # half of the points' tokens beyond one a sequence
    assert times.step_ms(129, 129) == pytest.approx(12 + 38 / 2)
    assert times.step_ms(1, 9999) == 30


def test_roofline_is_the_larger_of_reading_and_multiplying() -> None:
    rates, shape = (
        replace(H100, context_tokens=0, fixed_ms=0.5, chunk_ms=0.0, eager_ms=0.0),
        PAPER.target,
    )
    num_weights = shape.num_body_parameters + shape.num_head_parameters
    read_ms = 2e3 * num_weights / (H100.copy_bytes_per_s * H100.bandwidth_share)
    product_ms = 2e3 * num_weights / (H100.flops_per_s * H100.flops_share)
    assert step_ms(shape, rates, 1, 1, 1) == pytest.approx(read_ms + 0.5)
    assert step_ms(shape, rates, 1, 1, 512) == pytest.approx(512 * product_ms + 0.5)
    all_reduces_ms = step_ms(shape, rates, 2, 1, 1) - read_ms / 2 - 0.5
    assert all_reduces_ms == pytest.approx(2 * 64 * (0.01 + 2e3 * 5120 / 450e9))


@pytest.mark.parametrize("role", ["target", "draft"])
def test_fitted_steps_are_the_measured_ones_of_single_sequences(role: str) -> None:
    shape, rates = {
        "target": (PAPER.target, H100),
        "draft": (PAPER.draft, drafting(4.1)),
    }[role]
    times = fitted_times(shape, rates, 1)
    stages = json.loads(MEASUREMENTS.read_text())["stages"]
    measured = {
        row["tokens"]: row["ms"]["median"]
        for row in stages[role]["facts"]["rows"]
        if (row["what"], row.get("streams"), row.get("context"), row.get("states", True))
        in {("decode", 1, 900, True), ("read", 1, 1024, True)}
    }
    assert {1, 20, 40, 128} <= measured.keys()
    for num_tokens, expected_ms in measured.items():
        assert times.step_ms(1, num_tokens) == pytest.approx(expected_ms, rel=0.07)


@pytest.mark.parametrize(
    "arguments",
    [["--layout", "colocated"], ["--sessions", "1"], ["--seed", "1"], ["--answers", "2"]],
)
def test_part_of_the_loads_needs_an_output(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        load.main(arguments)
    assert "need --output" in capsys.readouterr().err


def test_seed_and_number_of_answers_change_the_loads(tmp_path: Path) -> None:
    found = []
    for seed, num_answers in ((0, 2), (1, 2), (0, 3)):
        options = ["--layout", "separate", "--sessions", "1", "--output", str(tmp_path)]
        load.main([*options, "--seed", str(seed), "--answers", str(num_answers)])
        facts = json.loads((tmp_path / "loads.json").read_text())
        assert (facts["seed"], facts["answers"]) == (seed, num_answers)
        found.append(facts["rows"])
    assert found[0] != found[1] and found[0] != found[2]


def test_faster_steps_replace_only_those_that_are_named() -> None:
    measured = measured_times("target")
    assert bounds.faster("target", decodes=False, scores=False) == measured
    scored = bounds.faster("target", decodes=False, scores=True)
    for number, points in measured.by_sequences.items():
        [step_ms, *scores_ms] = [ms for _, ms in scored.by_sequences[number]]
        assert step_ms == points[0][1]
        for score_ms, (_, measured_ms) in zip(scores_ms, points[1:], strict=True):
            assert step_ms + bounds.SCORE_MS <= score_ms < measured_ms
    draft_ms = bounds.faster("draft", decodes=True, scores=True).step_ms(1, 1)
    assert draft_ms == pytest.approx(1.043 / bounds.SHARE, rel=1e-3)


def test_bounds_start_from_the_published_row() -> None:
    assert f"{next(bounds.gains(1)):.2f}" == "1.67"
