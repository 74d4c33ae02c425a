"""`auto` with many generations at once, whose calls share the steps of the engines."""

import pytest

from semspec.decoding.costs import Costs
from tests.decoding.crowd import Crowd, Steps

SMALL = Steps(1.0, 0.1, 0.1)
BUSY = Steps(8.0, 1.0, 1.0)
"""A target whose reads cost it as much as its own tokens, so that drafting pays for few generations only."""
BATCHED = Steps(8.4, 2.1, 0.6)
"""The bundled target on a CPU: bench/results/engine."""


@pytest.mark.parametrize("num_generations", [1, 8, 32])
@pytest.mark.parametrize(("target", "acceptance"), [(BUSY, 0.3), (BUSY, 0.9), (BATCHED, 0.3), (BATCHED, 0.9)])
def test_auto_never_falls_below_the_target_alone(target: Steps, acceptance: float, num_generations: int) -> None:
    alone = Crowd(target, SMALL, acceptance, num_generations, "target").tokens_per_s(60, 120)
    auto = Crowd(target, SMALL, acceptance, num_generations, "auto").tokens_per_s(60, 120)
    assert auto > 0.97 * alone


def test_drafting_that_costs_the_others_more_than_it_saves_is_left() -> None:
    """Each generation waits less when it drafts, whatever the others do; together they are slower."""
    alone = Crowd(BUSY, SMALL, 0.3, 32, "target").tokens_per_s(20, 60)
    assert Crowd(BUSY, SMALL, 0.3, 32, "semantic").tokens_per_s(20, 60) < 0.75 * alone
    auto = Crowd(BUSY, SMALL, 0.3, 32, "auto")
    auto.tokens_per_s(60, 120)
    assert auto.num_drafted < 0.1 * auto.num_tokens


@pytest.mark.parametrize("num_generations", [8, 32])
def test_drafting_that_pays_under_load_goes_on(num_generations: int) -> None:
    semantic = Crowd(BATCHED, SMALL, 0.9, num_generations, "semantic").tokens_per_s(60, 120)
    assert Crowd(BATCHED, SMALL, 0.9, num_generations, "auto").tokens_per_s(60, 120) > 0.93 * semantic


def test_generations_that_ended_do_not_count() -> None:
    costs = Costs()
    with costs.running(), costs.running():
        pass
    few = Crowd(BATCHED, SMALL, 0.9, 1, "auto", costs)
    few.tokens_per_s(0, 20)
    assert few.num_tokens - few.num_drafted <= 0.2 * few.num_tokens
