"""What holds for all strategies, on fakes: budgets, resuming, losses, closing."""

import asyncio
from contextlib import aclosing
from dataclasses import asdict, replace
from typing import Any

import pytest

from semspec.decoding import decode
from semspec.errors import (
    ContextTooLong,
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    Mismatch,
    NotFound,
    Overloaded,
    SemspecError,
    Unavailable,
)
from semspec.records import read_stored, stored
from semspec.types import Acceptance, Finished, FinishReason, TokenLogprob, Writer
from tests.decoding.support import (
    BY_PROBES,
    CUES,
    HELPED,
    PROPOSING,
    WITH_CANDIDATES,
    ConstantVerifier,
    generation,
    num_running,
    outcome,
    players,
    records,
    resumed,
    run,
    run_with_loss,
    segments,
)
from tests.helpers.variants import VARIANTS


@pytest.mark.parametrize(
    ("strategy", "alone", "options", "target_probability"),
    [
        ("semantic", "draft", {}, 0.9),
        ("semantic", "target", {}, 0.0),
        ("semantic+token-level", "target", {}, 0.0),
        *(
            ("likelihood", "draft", {"acceptance": Acceptance(threshold=0.0), "gamma": gamma}, 0.0)
            for gamma in (1, 3)
        ),
        *(
            ("likelihood", "target", {"acceptance": Acceptance(threshold=1.0), "gamma": gamma}, 0.9)
            for gamma in (1, 3)
        ),
        *(
            ("token-level", "target", {"num_speculative_tokens": number}, 0.9)
            for number in (1, 2, 3, 4, 7, 16)
        ),
        ("spec-reason", "draft", {"acceptance": Acceptance(threshold=0.0)}, 0.0),
    ],
)
async def test_all_kept_equals_the_draft_alone_and_none_kept_the_target_alone(
    strategy: str, alone: str, options: dict[str, Any], target_probability: float
) -> None:
    fakes = players(ConstantVerifier(0.5, target_probability), agreement=0.0)
    events = await run(await generation(strategy=strategy, **options), fakes)
    assert segments(events) == segments(await run(await generation(strategy=alone), players()))
    assert events[-1] == Finished(FinishReason.STOP)
    for record in records(events):
        assert record.accepted is (None if strategy == "token-level" else alone == "draft")
        assert (record.rejected is not None) is (record.accepted is False)
        assert record.num_accepted_tokens == 0
        assert (record.num_proposed_tokens > 0) is ("token-level" in strategy)


@pytest.mark.parametrize(
    ("strategy", "options", "stages", "num_calls"),
    [
        ("target", {}, {"write_ms"}, (1, 0)),
        ("draft", {}, {"draft_ms"}, (1, 0)),
        ("semantic", {}, {"draft_ms", "read_ms", "write_ms"}, (3, 0)),
        ("semantic", {"gamma": 3, "max_tokens": 200}, {"draft_ms", "read_ms", "write_ms"}, (5, 0)),
        ("semantic+token-level", {}, {"draft_ms", "read_ms", "write_ms"}, (2, 2)),
        ("semantic+retrieval", {}, {"draft_ms", "read_ms", "write_ms"}, (2, 2)),
        ("token-level", {}, {"draft_ms", "read_ms"}, (0, 2)),
        ("retrieval", {}, {"draft_ms", "read_ms"}, (0, 2)),
    ],
)
async def test_waits_are_told_by_stage_and_wire_is_what_no_engine_spent(
    strategy: str, options: dict[str, Any], stages: set[str], num_calls: tuple[int, int]
) -> None:
    """The fakes say that each call took 1 ms for a segment, and take 5 or more. `num_calls`: of a segment, and of each
    of its tokens. Times of a round are those of its kept segments, whatever else was drafted in it."""
    fakes = players(ConstantVerifier(0.5, 0.0), num_segments=30, delay_s=0.005, agreement=0.0)
    asked = await generation(
        **{"strategy": strategy, "max_tokens": 40, "draft_ahead": False} | options
    )
    for record in records(await run(asked, fakes))[:2]:
        waits = asdict(record.times)
        wire_ms = waits.pop("wire_ms")
        assert {
            stage for stage, wait_ms in waits.items() if wait_ms > 4 and stage != "judge_ms"
        } == stages
        expected_ms = num_calls[0] + num_calls[1] * len(record.segment.token_ids)
        assert wire_ms == pytest.approx(sum(waits.values()) - expected_ms)


@pytest.mark.parametrize("strategy", VARIANTS)
async def test_record_is_read_from_what_is_stored_as_it_was(strategy: str) -> None:
    for record in records(
        await run(await generation(strategy=strategy), players(num_segments=12, remarks=CUES))
    ):
        for one in (record, replace(record, logprobs=(TokenLogprob(7, b"\xf0\x9f", -2.0),))):
            assert read_stored(stored(one)) == one


@pytest.mark.parametrize("strategy", VARIANTS)
@pytest.mark.parametrize("max_tokens", [1, 2, 17, 40, 63])
@pytest.mark.parametrize("agreement", [0.0, 0.7, 1.0])
async def test_budget_is_kept(strategy: str, max_tokens: int, agreement: float) -> None:
    own = await generation(strategy=strategy, max_tokens=max_tokens)
    events = await run(own, players(remarks=CUES, agreement=agreement))
    assert sum(len(segment.token_ids) for segment in segments(events)) == max_tokens
    assert events[-1] == Finished(FinishReason.LENGTH)
    assert [r.index for r in records(events)] == list(range(len(records(events))))


@pytest.mark.parametrize(
    ("strategy", "num_candidates"),
    [
        *((strategy, 1) for strategy in VARIANTS if strategy not in ("token-level", "retrieval")),
        *((strategy, number) for strategy in WITH_CANDIDATES for number in (2, 4)),
    ],
)
async def test_resumed_generation_equals_undisturbed_one(
    strategy: str, num_candidates: int
) -> None:
    first = await generation(strategy=strategy, num_candidates=num_candidates)
    whole = outcome(await run(first, players(num_segments=30, remarks=CUES)))
    kept = segments(await run(first, players(num_segments=30, remarks=CUES)))
    assert len(kept) >= 15 and whole[-1] == Finished(FinishReason.STOP)
    for cut in range(1, len(kept)):
        rest = outcome(
            await run(resumed(first, kept[:cut]), players(num_segments=30, remarks=CUES))
        )
        assert rest == whole[cut:] and num_running() == 0


LOSSES = [
    Unavailable("gone"),
    DeadlineExceeded("late"),
    Overloaded("full"),
    Mismatch("x"),
    InvalidRequest("no"),
    InternalError("bug"),
    NotFound("what"),
]
"""All that a drafter or a verifier may raise."""


@pytest.mark.parametrize("error", LOSSES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    ("strategy", "role"),
    [*((one, "draft") for one in (*HELPED, "draft")), *((one, "verifier") for one in BY_PROBES)],
)
async def test_target_finishes_after_loss(strategy: str, role: str, error: SemspecError) -> None:
    """Of a model or the verifier, after the second segment."""
    fakes = players(num_segments=12)
    player: Any = fakes.verifier if role == "verifier" else fakes.drafter
    events = await run_with_loss(
        await generation(strategy=strategy, draft_ahead=False), fakes, player, error
    )
    alone = [r.fallback is not None for r in records(events)]
    assert not any(alone[:2]) and any(alone)
    assert alone == sorted(alone), "once lost, lost for good"
    for record in records(events)[alone.index(True) :]:
        assert record.segment.writer is Writer.TARGET and record.accepted is None
        assert record.fallback and role in record.fallback and record.num_proposed_tokens == 0
    assert events[-1] == Finished(FinishReason.STOP)
    assert len(segments(events)) == 12


@pytest.mark.parametrize("strategy", sorted({*HELPED} - {*BY_PROBES}))
async def test_lost_verifier_is_not_noticed_where_nobody_asks_it(strategy: str) -> None:
    fakes = players()
    fakes.verifier.errors.append(Unavailable("gone"))
    assert not any(
        r.fallback for r in records(await run(await generation(strategy=strategy), fakes))
    )


@pytest.mark.parametrize("strategy", [*HELPED, "draft"])
async def test_drafter_lost_from_the_start_equals_the_target_alone(strategy: str) -> None:
    fakes = players()
    fakes.drafter.errors += [Unavailable("gone")] * 9
    alone = await run(await generation(strategy="target"), players())
    assert segments(await run(await generation(strategy=strategy), fakes)) == segments(alone)


@pytest.mark.parametrize("strategy", HELPED)
async def test_lost_target_is_an_error_and_leaves_no_draft_running(strategy: str) -> None:
    fakes = players(ConstantVerifier(0.5, 0.0), remarks=CUES[1:])
    fakes.target.errors.append(Unavailable("gone"))
    with pytest.raises(Unavailable):
        await run(await generation(strategy=strategy), fakes)
    assert num_running() == 0


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            InvalidRequest("a token id is outside the vocabulary", "token_ids"),
            "refuses what it was sent",
        ),
        (Mismatch("tokens of another tokenizer", "proposal.tokenizer"), "does not fit the rest"),
    ],
)
@pytest.mark.parametrize("strategy", ["semantic", "random", "spec-reason", *PROPOSING])
async def test_refused_draft_target_alone(strategy: str, error: SemspecError, reason: str) -> None:
    fakes = players()
    fakes.target.errors.append(error)
    alone = await run(await generation(strategy="target"), players())
    events = await run(await generation(strategy=strategy), fakes)
    assert segments(events) == segments(alone)
    assert records(events)[0].fallback == f"the target {reason}"


@pytest.mark.parametrize("strategy", VARIANTS)
@pytest.mark.parametrize("num_events", [1, 3])
async def test_closing_a_generation_leaves_nothing_running(strategy: str, num_events: int) -> None:
    fakes = players(delay_s=0.002, remarks=CUES)
    async with aclosing(decode(await generation(strategy=strategy), fakes.backends)) as events:
        for _ in range(num_events):
            await anext(events)
    assert num_running() == 0
    written = fakes.drafter.num_written, fakes.target.num_written
    await asyncio.sleep(0.01)
    assert (fakes.drafter.num_written, fakes.target.num_written) == written


@pytest.mark.parametrize("strategy", VARIANTS)
@pytest.mark.parametrize("after_s", [0.001, 0.012, 0.031])
async def test_cancelling_leaves_nothing_running(strategy: str, after_s: float) -> None:
    task = asyncio.create_task(
        run(await generation(strategy=strategy), players(delay_s=0.01, remarks=CUES))
    )
    await asyncio.sleep(after_s)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert num_running() == 0


@pytest.mark.parametrize("strategy", ["target", "draft", *PROPOSING])
async def test_closing_a_single_model_closes_its_stream(strategy: str) -> None:
    """Also of the target that goes on alone after a loss."""
    fakes = players()
    if strategy in PROPOSING:
        fakes.drafter.errors.append(Unavailable("gone"))
    async with aclosing(decode(await generation(strategy=strategy), fakes.backends)) as events:
        await anext(events)
    assert (fakes.drafter if strategy == "draft" else fakes.target).num_cancelled == 1
    assert num_running() == 0


@pytest.mark.parametrize("strategy", ["semantic", "spec-reason"])
async def test_target_writes_the_end_alone_where_a_step_to_read_does_not_fit(strategy: str) -> None:
    fakes, params = players(), await generation(strategy=strategy, draft_ahead=False)
    events = await run_with_loss(params, fakes, fakes.target, ContextTooLong("too long"), after=1)
    assert records(events)[1].fallback == "the target has too small a window"
    assert events[-1] == Finished(FinishReason.STOP)


@pytest.mark.parametrize("strategy", VARIANTS)
async def test_full_window_ends_a_generation_under_way_and_refuses_a_new_one(strategy: str) -> None:
    fakes = players()
    first = await generation(strategy=strategy)
    kept = segments(await run(first, fakes))[:2]
    fakes.drafter.errors = [ContextTooLong("full")] * 2
    fakes.target.errors = [ContextTooLong("full")] * 2
    with pytest.raises(ContextTooLong):
        await run(first, fakes)
    fakes.drafter.errors = [ContextTooLong("full")] * 2
    fakes.target.errors = [ContextTooLong("full")] * 2
    assert await run(resumed(first, kept), fakes) == [Finished(FinishReason.LENGTH)]
