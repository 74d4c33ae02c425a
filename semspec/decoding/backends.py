"""The backends of a generation."""

from collections.abc import Sequence
from dataclasses import dataclass

from semspec.decoding.likelihood.calibration import Calibration
from semspec.errors import Unavailable
from semspec.protocols import Drafter, Target, Verifier
from semspec.types import (
    STATE_CONVENTION,
    Judgement,
    ProbeProjections,
    Segmentation,
    SegmentScore,
    States,
    VerifierInfo,
)


class WithoutProbes:
    """The verifier of a pair that is served without probes."""

    async def info(self) -> VerifierInfo:
        return VerifierInfo("", "", STATE_CONVENTION, tuple(Segmentation))

    async def judge(
        self, draft_states: Sequence[States], scores: Sequence[SegmentScore], probes: str = ""
    ) -> list[Judgement]:
        raise Unavailable("the pair is served without probes")


@dataclass(frozen=True, slots=True)
class Backends:
    """The backends of one generation: engines, clients or fakes."""

    drafter: Drafter
    target: Target
    verifier: Verifier
    projections: tuple[ProbeProjections, ...] = ()
    """Projections that the engines apply to states for the verifier's probes; empty: states are sent whole."""
    likelihood: Calibration | None = None
    """Calibration of the strategy `likelihood`; None: the pair cannot be served with it."""
