"""Fake backends, requests, and helpers that inspect the events."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from semspec.decoding import Backends, Generation, decode
from semspec.errors import SemspecError
from semspec.types import (
    Context,
    Drafted,
    Event,
    Judgement,
    SamplingParams,
    Segment,
    SegmentRecord,
    StageTimes,
    Writer,
)
from tests.helpers.calibrations import calibration
from tests.helpers.fakes import FakeModel, FakeVerifier
from tests.helpers.variants import PLAIN, VARIANTS, changed

HELPED: tuple[str, ...] = tuple(
    strategy for strategy in VARIANTS if strategy not in ("target", "draft")
)
BY_PROBES: tuple[str, ...] = (
    "semantic",
    "semantic+token-level",
    "semantic+retrieval",
    "last-hidden",
    "surprisal",
)
PROPOSING: tuple[str, ...] = (
    "token-level",
    "semantic+token-level",
    "retrieval",
    "semantic+retrieval",
)
WITH_CANDIDATES: tuple[str, ...] = (
    "semantic",
    "random",
    "semantic+token-level",
    "semantic+retrieval",
)
CUES = ("", "wait, ", "yes, ", "check: ")


class ConstantVerifier(FakeVerifier):
    """Gives every segment the same probabilities."""

    def __init__(self, draft_probability: float, target_probability: float) -> None:
        super().__init__()
        self._judgement = Judgement(draft_probability, target_probability)

    async def judge(self, *given: Any) -> list[Judgement]:
        return [self._judgement] * len(await super().judge(*given))


@dataclass(frozen=True)
class Players:
    """The three fake backends."""

    drafter: FakeModel
    target: FakeModel
    verifier: FakeVerifier

    @property
    def backends(self) -> Backends:
        likelihood = calibration(self.drafter.model_info, self.target.model_info)
        return Backends(self.drafter, self.target, self.verifier, likelihood=likelihood)


def players(
    verifier: FakeVerifier | None = None,
    num_segments: int = 6,
    delay_s: float = 0.0,
    remarks: Sequence[str] = ("",),
    agreement: float = 0.5,
) -> Players:
    drafter = FakeModel(Writer.DRAFT, num_segments, delay_s, remarks)
    target = FakeModel(Writer.TARGET, num_segments, delay_s, remarks)
    target.agreement = agreement
    return Players(drafter, target, verifier or FakeVerifier())


async def generation(**changes: Any) -> Generation:
    piece = await FakeModel(Writer.TARGET).encode("Question?")
    plain = Generation(Context((piece,)), SamplingParams(seed=7), strategy=PLAIN)
    return changed(plain, **{"strategy": "semantic", **changes})


def num_running() -> int:
    """Tasks beside the caller's."""
    return len(asyncio.all_tasks()) - 1


def resumed(generation: Generation, segments: Sequence[Segment]) -> Generation:
    """The same request with `segments` kept already."""
    return replace(generation, context=generation.context.extended(*segments))


async def run(generation: Generation, players: Players) -> list[Event]:
    return [event async for event in decode(generation, players.backends)]


async def run_with_loss(
    generation: Generation,
    players: Players,
    lossy: FakeModel | FakeVerifier,
    error: SemspecError,
    after: int = 2,
) -> list[Event]:
    """As `run`; `lossy` raises `error` once so many events have come."""
    events: list[Event] = []
    async for event in decode(generation, players.backends):
        events.append(event)
        if len(events) == after:
            lossy.errors.append(error)
    return events


def records(events: Sequence[Event]) -> list[SegmentRecord]:
    return [event for event in events if isinstance(event, SegmentRecord)]


def shown(events: Sequence[Event]) -> list[Drafted]:
    return [event for event in events if isinstance(event, Drafted)]


def segments(events: Sequence[Event]) -> list[Segment]:
    return [record.segment for record in records(events)]


def texts(events: Sequence[Event]) -> str:
    return "".join(segment.text for segment in segments(events))


def outcome(events: Sequence[Event]) -> list[object]:
    """Events without their times."""
    return [
        replace(event, times=StageTimes()) if isinstance(event, SegmentRecord) else event
        for event in events
    ]
