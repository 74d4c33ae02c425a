"""The same generation on fakes, on engines in this process, and on either behind real sockets: the same trace."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from semspec.decoding import Backends, Generation, Options, decode, semantic
from semspec.types import (
    Acceptance,
    Context,
    Finished,
    FinishReason,
    SamplingParams,
    Segmentation,
    SegmentRecord,
    Writer,
)
from tests.helpers import variants
from tests.helpers.calibrations import calibration
from tests.helpers.engines import PROMPT, Players, assert_same, behind_sockets, engines, trace
from tests.helpers.fakes import FakeModel, FakeVerifier
from tests.helpers.variants import PLAIN, VARIANTS, changed


@pytest.fixture(params=["fakes", "engines"])
async def players(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Players]:
    if request.param == "fakes":
        yield FakeModel(Writer.DRAFT, 10), FakeModel(Writer.TARGET, 10), FakeVerifier()
        return
    async with engines(request.getfixturevalue("checkpoints"), tmp_path) as loaded:
        yield loaded


async def in_process(players: Players) -> Backends:
    """The roles in this process; `likelihood` accepts some segments and rejects some."""
    draft, target, verifier = players
    middle = 0.5 if isinstance(target, FakeModel) else -6.0
    likelihood = calibration(await draft.info(), await target.info(), middle=middle)
    return Backends(draft, target, verifier, likelihood=likelihood)


CASES: list[tuple[str, dict[str, Any]]] = [
    ("semantic", {}),
    ("semantic", {"gamma": 3}),
    (
        "semantic",
        {
            "gamma": 2,
            "segmentation": Segmentation.SENTENCE,
            "acceptance": Acceptance("threshold", 1.0),
        },
    ),
    ("semantic", {"segmentation": Segmentation.SENTENCE}),
    ("semantic", {"num_candidates": 3}),
    ("last-hidden", {}),
    ("surprisal", {"gamma": 2}),
    ("likelihood", {"gamma": 2}),
    ("semantic+token-level", {"num_speculative_tokens": 3}),
    ("token-level", {"num_speculative_tokens": 5}),
    ("token-level", {"num_speculative_tokens": 2, "segmentation": Segmentation.SENTENCE}),
    ("spec-reason", {"acceptance": Acceptance(threshold=4.0)}),
    ("random", {"gamma": 2}),
    ("target", {"segmentation": Segmentation.SENTENCE}),
    ("draft", {}),
]


async def test_same_trace_in_process_and_over_grpc(players: Players) -> None:
    backends = await in_process(players)
    context = Context((await backends.target.encode(PROMPT),))
    verdicts, num_proposed, num_accepted = set(), 0, 0
    async with behind_sockets(*players) as remote:
        assert await remote.target.encode(PROMPT) == context.pieces[0]
        assert await remote.target.info() == await backends.target.info()
        assert await remote.verifier.info() == await backends.verifier.info()
        for seed, (strategy, options) in enumerate(CASES):
            sampling = SamplingParams(1.0, 0.97, 0, seed)
            generation = changed(
                Generation(context, sampling, 150, session=f"s{seed}", strategy=PLAIN),
                strategy,
                **options,
            )
            local = await trace(generation, backends)
            assert_same(
                local, await trace(generation, replace(remote, likelihood=backends.likelihood))
            )
            verdicts |= {record.accepted for record in local}
            num_proposed += sum(record.num_proposed_tokens for record in local)
            num_accepted += sum(record.num_accepted_tokens for record in local)
            assert not any(record.fallback for record in local)
    assert verdicts == {True, False, None}
    assert 0 < num_accepted < num_proposed


async def test_greedy_rejecting_loop_equals_the_target_alone(players: Players) -> None:
    backends = await in_process(players)
    context = Context((await backends.target.encode(PROMPT),))
    never = Acceptance("threshold", 1e9)
    greedy = Generation(
        context,
        SamplingParams(temperature=0.0),
        120,
        strategy=semantic.strategy(Options(acceptance=never)),
    )
    alone = await trace(variants.alone(greedy), backends)
    assert [r.segment for r in await trace(greedy, backends)] == [r.segment for r in alone]


async def test_full_window_ends_by_length(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    """Also those that have the target read or answer more than it writes."""
    async with engines(checkpoints, tmp_path, window=70) as players:
        backends = await in_process(players)
        prompt = await backends.target.encode(PROMPT)
        for strategy in VARIANTS:
            generation = changed(
                Generation(
                    Context((prompt,)), SamplingParams(temperature=0.0), 1000, strategy=PLAIN
                ),
                strategy,
            )
            events = [event async for event in decode(generation, backends)]
            assert events[-1] == Finished(FinishReason.LENGTH), strategy
            kept = [event.segment for event in events if isinstance(event, SegmentRecord)]
            assert len(prompt.token_ids) + sum(len(segment.token_ids) for segment in kept) == 70, (
                strategy
            )
