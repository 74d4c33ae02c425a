"""Speculation by segments without probes: accept a drafted segment by the target's log-probabilities over it.

The rounds are those of SemanticSpec. In place of p/q stands one number, the calibrated probability that the target says
what the segment says (`calibration`); a segment is accepted iff it reaches a threshold.
"""

from collections.abc import AsyncGenerator, Sequence

from semspec.decoding.backends import Backends
from semspec.decoding.generation import Limits, Options, Progress, Step, Strategy
from semspec.decoding.semantic import Judge, rounds
from semspec.errors import Mismatch
from semspec.types import Acceptance, GeneratedSegment, Judgement, SegmentScore

THRESHOLD = Limits("likelihood", "acceptance.threshold", 0.0, 0, 1)
"""Limits of a request's threshold; the default is the calibration's."""


def _by_likelihood(progress: Progress, backends: Backends) -> AsyncGenerator[Step, None]:
    """Judge by the calibrated probability p; q is 1, so that p/q is p. The draft sends no states."""
    calibration = backends.likelihood
    if calibration is None:
        raise Mismatch(
            "the pair has no likelihood calibration",
            remedy="make one with `semspec train calibrate`",
        )

    async def judge(
        index: int, drafted: Sequence[GeneratedSegment], scores: Sequence[SegmentScore]
    ) -> list[Judgement]:
        return [Judgement(1.0, calibration.probability(score.surprisal)) for score in scores]

    # The states are not used; a projection makes them small.
    projection = next((pair.target for pair in backends.projections if not pair.probes), "")
    threshold = progress.generation.strategy.options.acceptance.threshold
    acceptance = Acceptance("threshold", calibration.threshold if threshold is None else threshold)
    by_likelihood = Judge(judge, acceptance, target_projection=projection, wants_draft_states=False)
    return rounds(progress, backends, by_likelihood)


def strategy(options: Options) -> Strategy:
    THRESHOLD.of(options.acceptance.threshold)
    return Strategy("likelihood", _by_likelihood, options, needs_calibration=True)
