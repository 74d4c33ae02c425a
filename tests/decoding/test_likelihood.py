"""What is particular to `likelihood`: the rule, no states of the draft, no verifier."""

from collections.abc import AsyncGenerator
from dataclasses import replace
from math import exp, inf, nan

import pytest

from semspec.decoding import decode
from semspec.decoding.backends import WithoutProbes
from semspec.errors import Mismatch, Unavailable
from semspec.types import (
    SURPRISAL_FEATURES,
    Acceptance,
    Context,
    GeneratedSegment,
    GenerationParams,
    Writer,
)
from tests.decoding.support import generation, outcome, players, records, run
from tests.helpers.calibrations import calibration
from tests.helpers.fakes import FakeModel

MADE_UP = calibration(FakeModel(Writer.DRAFT).model_info, FakeModel(Writer.TARGET).model_info)


class Stateless(FakeModel):
    """A draft whose states must not be asked for."""

    def generate(
        self, context: Context, params: GenerationParams
    ) -> AsyncGenerator[GeneratedSegment, None]:
        assert not params.want_states and not params.projection
        return super().generate(context, params)


async def test_segment_is_accepted_iff_its_probability_reaches_the_threshold() -> None:
    fakes = replace(players(num_segments=30), drafter=Stateless(Writer.DRAFT, 30))
    asked = await generation(strategy="likelihood", gamma=2)
    trace, context = records(await run(asked, fakes)), asked.context
    assert {record.accepted for record in trace} == {True, False}
    for record in trace:
        [score] = await fakes.target.score(context, [record.rejected or record.segment])
        context = context.extended(record.segment)
        assert record.judgement is not None and record.judgement.draft_probability == 1
        assert record.judgement.target_probability == MADE_UP.probability(score.surprisal)
        assert record.accepted == (record.judgement.target_probability >= MADE_UP.threshold)
    assert fakes.verifier.num_judged == 0


async def test_rule_of_the_request_does_not_apply() -> None:
    strict = await generation(strategy="likelihood", acceptance=Acceptance("threshold"))
    usual = await generation(strategy="likelihood")
    assert outcome(await run(strict, players())) == outcome(await run(usual, players()))


async def test_pair_without_probes_is_enough() -> None:
    fakes = players()
    bare = replace(fakes.backends, verifier=WithoutProbes())
    asked = await generation(strategy="likelihood")
    events = [event async for event in decode(asked, bare)]
    assert outcome(events) == outcome(await run(asked, players()))
    with pytest.raises(Unavailable, match="without probes"):
        await bare.verifier.judge([], [])


async def test_pair_without_calibration_is_refused_with_the_remedy() -> None:
    bare = replace(players().backends, likelihood=None)
    with pytest.raises(Mismatch, match="semspec train calibrate"):
        await anext(decode(await generation(strategy="likelihood"), bare))


def test_probability_is_the_logistic_function_of_the_statistics() -> None:
    made_up = replace(MADE_UP, weights=(2.0, 3.0), bias=-1.0)
    surprisal = [0.25 * position for position in range(len(SURPRISAL_FEATURES))]
    score = 2 * 0.0 + 3 * 0.25 * SURPRISAL_FEATURES.index("min_margin") - 1
    assert made_up.probability(surprisal) == pytest.approx(1 / (1 + exp(-score)))
    assert made_up.probability([-1e6] * len(surprisal)) == 0.0
    assert made_up.probability([1e6] * len(surprisal)) == 1.0


@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_statistic_that_is_no_number_is_never_accepted(value: float) -> None:
    surprisal = [value] + [0.0] * (len(SURPRISAL_FEATURES) - 1)
    assert MADE_UP.probability(surprisal) == 0.0
