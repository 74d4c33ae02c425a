"""Speculation by segments without probes and verifier: accept a drafted segment by the target's log-probabilities over
it.

The rounds are those of SemanticSpec. In place of p/q stands one number, the calibrated probability that the target says
what the segment says (`semspec.likelihood`); a segment is accepted iff it reaches a threshold.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from semspec.decoding.protocols import Backends
from semspec.decoding.semantic import Judge, rounds
from semspec.decoding.steps import Progress, Step, rewrite_with_target
from semspec.decoding.strategy import Option, Strategy
from semspec.errors import Mismatch
from semspec.likelihood import Calibration
from semspec.types import Acceptance, GeneratedSegment, Judgement, SegmentScore


@dataclass(frozen=True, kw_only=True)
class Options:
    """Request options of this strategy."""

    likelihood_threshold: Annotated[
        float | None, Option("least probability that likelihood accepts; unset: the calibration's", ge=0, le=1)
    ] = None


def by_likelihood(calibration: Calibration, projection: str = "") -> Judge:
    """Judge by the calibrated probability p; q is 1, so that p/q is p. The draft sends no states.

    `projection`: digest of the one to apply to the target's states, which are not used.
    """

    async def judge(index: int, drafted: Sequence[GeneratedSegment], scores: Sequence[SegmentScore]) -> list[Judgement]:
        return [Judgement(1.0, calibration.probability(score.surprisal)) for score in scores]

    return Judge(judge, target_projection=projection, wants_draft_states=False)


def _by_likelihood(progress: Progress, backends: Backends) -> AsyncGenerator[Step, None]:
    if backends.likelihood is None:
        raise Mismatch("the pair has no likelihood calibration; make one with `semspec train calibrate`")
    projection = next((one.target for one in backends.projections if not one.probes), "")
    threshold = progress.generation.likelihood_threshold
    rule = Acceptance("threshold", backends.likelihood.threshold if threshold is None else threshold)
    progress = replace(progress, generation=replace(progress.generation, acceptance=rule))
    return rounds(
        progress, backends, by_likelihood(backends.likelihood, projection), rewrite_with_target(backends.target)
    )


STRATEGY = Strategy(_by_likelihood, needs_calibration=True)
