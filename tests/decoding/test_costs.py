"""What `auto` makes of measured times, in a made-up world."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from semspec.decoding.costs import Costs, Line, Ratio
from semspec.types import Forecast
from tests.decoding.world import World, live, play

LOSING = World(acceptance=0.1, draft_token_ms=6.0)
WINNING = World(acceptance=0.95)
COSTLY_CALLS = World(0.98, draft_token_ms=2.0, read_call_ms=30.0, read_token_ms=0.1, write_token_ms=20.0)
"""Where much is to be read at a time, if it is likely to be kept."""


def share_alone(forecasts: Sequence[Forecast]) -> float:
    return sum(forecast.gamma == 0 for forecast in forecasts) / len(forecasts)


def mean_gamma(forecasts: Sequence[Forecast]) -> float:
    return sum(forecast.gamma for forecast in forecasts) / len(forecasts)


@pytest.mark.parametrize("gamma", [1, 4])
@pytest.mark.parametrize("acceptance", [0.1, 0.7, 0.95])
@pytest.mark.parametrize("hidden_ms", [0.0, 15.0, 1000.0])
def test_expected_time_is_that_of_many_rounds(gamma: int, acceptance: float, hidden_ms: float) -> None:
    world = World(acceptance=acceptance, hidden_ms=hidden_ms)
    chance, ms, num_tokens, is_ahead = Random(1), 0.0, 0, False
    for _ in range(20_000):
        played = play(world, gamma, is_ahead, chance)
        ms, num_tokens, is_ahead = ms + played.ms, num_tokens + played.num_tokens, played.is_whole
    assert world.stages.ms_per_token(gamma) == pytest.approx(ms / num_tokens, rel=0.04)


def test_stages_are_learnt_from_the_records() -> None:
    world, costs, chance = World(acceptance=0.8), Costs(), Random(2)
    assert costs.stages() is None
    for gamma in (1, 2) * 80:  # both, so that calls and tokens can be told apart
        played = play(world, gamma, False, chance)
        for record in played.records:
            costs.observe(record, gamma, len(played.records))
    learnt = costs.stages()
    assert learnt is not None
    assert learnt.write_token_ms == pytest.approx(world.write_token_ms)
    assert learnt.num_drafted_tokens == pytest.approx(20, rel=0.1)
    assert learnt.num_written_tokens == pytest.approx(24, rel=0.15)
    assert learnt.acceptance == pytest.approx(0.8, abs=0.15)
    assert learnt.draft_token_ms == pytest.approx(1.0, rel=0.2)
    assert learnt.read_call_ms == pytest.approx(8.0, rel=0.3)


def test_hidden_drafting_is_what_the_wait_lacks() -> None:
    costs = Costs()
    live(World(acceptance=0.9, hidden_ms=15.0), costs, 300)
    learnt = costs.stages()
    assert learnt is not None and learnt.hidden_ms == pytest.approx(15.0, rel=0.15)


def test_speculation_is_trusted_before_there_is_evidence() -> None:
    assert Costs().forecast(4) == Forecast(1, None, None)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("max_gamma", [1, 3])
def test_losing_speculation_leaves_the_target_alone_but_is_tried_now_and_then(seed: int, max_gamma: int) -> None:
    forecasts = live(LOSING, Costs(), 600, max_gamma, seed)
    assert share_alone(forecasts[:100]) >= 0.8 and share_alone(forecasts) >= 0.9
    tries = [index for index in range(1, 600) if forecasts[index].gamma and not forecasts[index - 1].gamma]
    gaps = [after - before for before, after in pairwise(tries)]
    assert len(tries) >= 4 and gaps == sorted(gaps) and gaps[-1] >= 4 * gaps[0]
    assert tries[-1] > 250, "it does not cease to try"
    last = forecasts[-1]
    assert last.target_ms_per_token == pytest.approx(10.0)


@pytest.mark.parametrize("seed", range(5))
def test_winning_speculation_goes_on(seed: int) -> None:
    assert share_alone(live(WINNING, Costs(), 300, seed=seed)) < 0.1


def test_target_is_measured_though_nothing_is_refused() -> None:
    costs = Costs()
    forecasts = live(replace(WINNING, acceptance=1.0), costs, 300)
    alone = [index for index, forecast in enumerate(forecasts) if forecast.gamma == 0]
    assert len(alone) >= 3 and share_alone(forecasts) < 0.05
    assert forecasts[alone[0] - 1].target_ms_per_token is None
    assert forecasts[-1].target_ms_per_token == pytest.approx(10.0)


def test_draft_that_is_slower_than_the_target_is_found_out_though_all_is_accepted() -> None:
    forecasts = live(World(acceptance=1.0, draft_token_ms=12.0), Costs(), 300)
    assert share_alone(forecasts[100:]) > 0.8


def test_drafting_comes_back_when_it_pays_again() -> None:
    costs = Costs()
    live(LOSING, costs, 300)
    assert share_alone(live(WINNING, costs, 600)[-200:]) < 0.1


def test_going_alone_follows_when_drafting_ceases_to_pay() -> None:
    costs = Costs()
    live(WINNING, costs, 300)
    assert share_alone(live(LOSING, costs, 200)[50:]) > 0.75


@pytest.mark.parametrize("seed", range(3))
def test_gamma_goes_down_when_acceptance_drops(seed: int) -> None:
    costs = Costs()
    before = live(COSTLY_CALLS, costs, 400, max_gamma=4, seed=seed)[-100:]
    after = live(replace(COSTLY_CALLS, acceptance=0.3), costs, 200, max_gamma=4, seed=seed)[-100:]
    assert mean_gamma(before) > 3 and mean_gamma(after) < 1.5


def test_gamma_stays_within_what_the_request_allows() -> None:
    costs = Costs()
    assert {forecast.gamma for forecast in live(COSTLY_CALLS, costs, 300, max_gamma=2)} <= {0, 1, 2}
    assert costs.forecast(1).gamma <= 1


def test_one_of_many_generations_at_once_measures_the_target() -> None:
    costs, chance = Costs(), Random(0)
    while True:
        forecasts = [costs.forecast(1) for _ in range(10)]
        if any(forecast.gamma == 0 for forecast in forecasts):
            break
        costs.observe(play(replace(WINNING, acceptance=1.0), 1, False, chance).records[0])
    assert [forecast.gamma for forecast in forecasts] == [0] + [1] * 9


def test_line_tells_calls_from_tokens_where_the_data_do() -> None:
    line = Line(ridge="calls")
    for tokens in (10, 20, 40, 10, 30, 20):
        line.add(1, tokens, 5 + 2 * tokens)
    fitted = line.fit()
    assert fitted is not None and fitted == pytest.approx((5, 2), rel=0.3)


@pytest.mark.parametrize(("ridge", "expected"), [("calls", (40, 0)), ("tokens", (0, 2))])
def test_line_leans_on_belief_where_the_data_do_not_tell(ridge: str, expected: tuple[float, float]) -> None:
    line = Line(ridge)  # type: ignore[arg-type]
    assert line.fit() is None
    for _ in range(3):
        line.add(1, 20, 40)
    assert line.fit() == pytest.approx(expected)


@pytest.mark.parametrize("ms", [(50, 10), (1, 100)])
def test_line_is_never_negative(ms: tuple[float, float]) -> None:
    line = Line(ridge="tokens")
    line.add(1, 10, ms[0])
    line.add(1, 20, ms[1])
    fitted = line.fit()
    assert fitted is not None and min(fitted) == 0 and max(fitted) > 0


def test_evidence_that_faded_for_ages_is_still_a_number_and_yields_to_new() -> None:
    line, ratio = Line(ridge="tokens"), Ratio(0.5, 2)
    line.add(1, 10, 100)
    ratio.add(1)
    for _ in range(100_000):
        line.decay()
        ratio.decay()
    assert line.fit() == pytest.approx((0, 10)) and ratio.value == pytest.approx(0.5)
    line.add(1, 10, 20)
    assert line.fit() == pytest.approx((0, 2), abs=1e-6)
