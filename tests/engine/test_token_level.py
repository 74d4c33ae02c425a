"""Token-level speculation: what is written with a draft's help is what the target would have written alone."""

import struct
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from semspec.engine import torch_engine
from semspec.engine.logits import renormalised
from semspec.engine.speculative import dense
from semspec.engine.torch_engine import TorchEngine
from semspec.errors import ContextTooLong, InvalidRequest, Mismatch
from semspec.types import (
    Context,
    Distribution,
    Proposal,
    SamplingParams,
    Segment,
    Segmentation,
    SegmentEnd,
    Writer,
)
from tests.engine.support import (
    HOT,
    Load,
    always_accepting,
    assert_distributed,
    certainly,
    is_fulfilled,
    nearly_certainly,
    pairs,
    params,
    prompt,
    segments_of,
    sizes_of,
    speculated,
    written,
)

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def unlimited_proposals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let models of random weights propose several tokens, although they are unsure of each."""
    monkeypatch.setattr(torch_engine, "LEAST_CONFIDENCE", 0.0)


@pytest.fixture
def checkpoint(checkpoints: dict[str, Path]) -> Path:
    """The target's."""
    return checkpoints["qwen2"]


@pytest.fixture
async def drafter(checkpoints: dict[str, Path], load: Load) -> TorchEngine:
    """Another model over the same vocabulary."""
    return load(checkpoints["llama"], Writer.DRAFT)


@pytest.mark.parametrize("gamma", [1, 3])
async def test_keeps_distribution(engine: TorchEngine, drafter: TorchEngine, gamma: int) -> None:
    """Of the first two tokens; top-k leaves few enough to count."""
    context, counts = await prompt(engine), Counter[tuple[int, ...]]()
    for seed in range(250):
        what = params(sampling=SamplingParams(1.5, 1.0, 3, seed), max_tokens=2, session="s")
        segments, _ = await speculated(drafter, engine, context, what, gamma)
        counts[tuple(token for segment in segments for token in segment.token_ids)] += 1
    assert_distributed(counts, pairs(engine, context, SamplingParams(1.5, 1.0, 3)))


@pytest.mark.parametrize(
    ("gamma", "fields"),
    [
        *((gamma, {"segmentation": one}) for one in Segmentation for gamma in (1, 4, 9)),
        *(
            (4, {"max_tokens": most, "max_segment_tokens": 5, "max_segments": n})
            for most in range(1, 9)
            for n in (0, 1)
        ),
    ],
)
async def test_greedy_rounds_write_what_write_writes(
    engine: TorchEngine, drafter: TorchEngine, gamma: int, fields: dict[str, Any]
) -> None:
    """To the token of each budget."""
    context = await prompt(engine)
    defaults = {
        "sampling": SamplingParams(0),
        "max_segments": 0,
        "max_tokens": 60,
        "max_segment_tokens": 17,
    }
    what = params(**defaults | fields)
    expected = await segments_of(engine, context, what)
    for helper in (drafter, engine):
        segments, num_accepted = await speculated(
            helper, engine, context, replace(what, session="s"), gamma
        )
        assert segments == expected
    least = what.max_tokens * gamma // (gamma + 1) - 20
    assert num_accepted >= least, "the target as its own drafter is nearly always right"


async def test_end_of_sequence_inside_a_proposal_ends_all(engine: TorchEngine) -> None:
    context = await prompt(engine)
    eos = min(engine.tokenizer.eos_ids)
    what = params(max_segments=0)
    with always_accepting():
        verified = await engine.verify_tokens(
            context, (5,), nearly_certainly(engine, (6, eos, 7)), what
        )
    [segment] = verified.segments
    assert (segment.token_ids, segment.end) == ((5, 6, eos), SegmentEnd.EOS)
    assert (verified.open_ids, verified.num_accepted) == ((), 2)


@pytest.mark.parametrize("segmentation", Segmentation)
@pytest.mark.parametrize("sampling", [HOT, SamplingParams(0.6, 0.95, 0, 5), SamplingParams(0)])
@pytest.mark.parametrize("num_proposed", [0, 5])
async def test_certain_proposals_leave_what_write_writes(
    engine: TorchEngine,
    uncached: TorchEngine,
    segmentation: Segmentation,
    sampling: SamplingParams,
    num_proposed: int,
) -> None:
    """Whatever is proposed: nothing, or what is written with a wrong token in every proposal."""
    context = await prompt(engine)
    what = params(
        sampling=sampling,
        segmentation=segmentation,
        max_segments=0,
        max_tokens=60,
        max_segment_tokens=15,
    )
    expected = await segments_of(uncached, context, what)
    tokens = [token for segment in expected for token in segment.token_ids]
    position, num_accepted, segments, open_ids = 0, 0, list[Segment](), tuple[int, ...]()
    while not is_fulfilled(segments, what):
        drafted = [*tokens[position : position + num_proposed]]
        drafted[2:3] = [5] * len(drafted[2:3])
        rest = replace(what, max_tokens=60 - position + len(open_ids), session="s")
        verified = await engine.verify_tokens(
            context, open_ids, certainly(engine, tuple(drafted)), rest
        )
        segments += verified.segments
        context, open_ids = context.extended(*verified.segments), verified.open_ids
        position = sum(len(segment.token_ids) for segment in segments) + len(open_ids)
        num_accepted += verified.num_accepted
    assert segments == expected and num_accepted >= num_proposed * len(tokens) / 15


@pytest.mark.parametrize("sampling", [HOT, SamplingParams(0)])
async def test_proposal_is_what_the_drafter_would_write(
    engine: TorchEngine, uncached: TorchEngine, sampling: SamplingParams
) -> None:
    context = await prompt(engine)
    what = params(sampling=sampling, max_segments=0, max_tokens=12)
    expected = [
        token for one in await written(uncached, context, what) for token in one.segment.token_ids
    ]
    proposal = await engine.propose(context, (), what, 12)
    assert list(proposal.token_ids) == expected
    for start in (1, 5):
        rest = await engine.propose(context, expected[:start], what, 3)
        assert list(rest.token_ids) == expected[start : start + 3]
    ids = (*context.pieces[0].token_ids, *expected)
    rows = engine.lm.forward(ids, engine.lm.new_kv(), num_rows=13).logits
    for index, distribution in enumerate(proposal.distributions):
        expected_row = renormalised(rows[index : index + 1], sampling)[0]
        assert torch.allclose(
            dense(distribution, len(expected_row)), expected_row, rtol=1e-3, atol=1e-6
        )


@pytest.mark.parametrize(("least", "num_tokens"), [(0.0, 6), (0.4, 3), (1.0, 1)])
async def test_proposal_ends_where_the_draft_is_unsure(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch, least: float, num_tokens: int
) -> None:
    """Probabilities of .7 are unsure together from the third on: .7 ** 3 < .4."""
    monkeypatch.setattr(torch_engine, "LEAST_CONFIDENCE", least)
    monkeypatch.setattr(torch_engine, "largest_probability", lambda logits: 0.7)
    proposal = await engine.propose(await prompt(engine), (), params(), 6)
    assert len(proposal.token_ids) == num_tokens


async def test_proposal_ends_with_end_of_sequence_and_with_the_window(engine: TorchEngine) -> None:
    context = Context((await engine.encode("Tom has pens. " * 118),))
    num_tokens = len(context.pieces[0].token_ids)
    proposal = await engine.propose(context, (), params(sampling=SamplingParams(0)), 500)
    assert num_tokens + len(proposal.token_ids) <= 600
    assert (
        len(proposal.token_ids) == 600 - num_tokens
        or proposal.token_ids[-1] in engine.tokenizer.eos_ids
    )
    full = await engine.propose(context, (5,) * (599 - num_tokens), params(), 4)
    assert len(full.token_ids) == 1
    with pytest.raises(ContextTooLong, match="600"):
        await engine.propose(context, (5,) * (600 - num_tokens), params(), 4)
    eos = min(engine.tokenizer.eos_ids)
    with pytest.MonkeyPatch.context() as patch:
        certain = (eos, certainly(engine, (eos,)).distributions[0])
        patch.setattr("semspec.engine.torch_engine.draw_with_distribution", lambda *_: certain)
        assert (await engine.propose(context, (), params(), 4)).token_ids == (eos,)


@pytest.mark.parametrize("seed", range(3))
async def test_cached_verification_equals_recomputed(
    engine: TorchEngine, uncached: TorchEngine, drafter: TorchEngine, seed: int
) -> None:
    """Rounds, with retries and writes in between, which find the prefixes that rounds leave and leave others."""
    context = await prompt(engine)
    open_ids: tuple[int, ...] = ()
    for step in range(12):
        what = params(
            sampling=SamplingParams(1.0, 0.95, 0, 20 * seed + step),
            segmentation=Segmentation.SENTENCE,
            max_segments=step % 2,
            max_segment_tokens=6,
            session="s" * (step % 3),
        )
        proposal = await drafter.propose(context, open_ids, what, 1 + step % 4)
        fresh = replace(
            await uncached.verify_tokens(context, open_ids, proposal, what), duration_ms=0
        )
        for _ in range(2):
            assert (
                replace(
                    await engine.verify_tokens(context, open_ids, proposal, what), duration_ms=0
                )
                == fresh
            )
        context, open_ids = context.extended(*fresh.segments), fresh.open_ids
        if fresh.segments and fresh.segments[-1].end is SegmentEnd.EOS:
            return
        if not open_ids:
            assert await segments_of(engine, context, what) == await segments_of(
                uncached, context, what
            )


async def test_rounds_feed_only_new_tokens(engine: TorchEngine, drafter: TorchEngine) -> None:
    context = await prompt(engine)
    what = params(max_segments=0, max_segment_tokens=100, session="s")
    proposal = await drafter.propose(context, (), what, 4)
    first = await engine.verify_tokens(context, (), proposal, what)
    open_ids = (
        *(token for segment in first.segments for token in segment.token_ids),
        *first.open_ids,
    )
    drafted, verified = sizes_of(drafter), sizes_of(engine)
    second = await drafter.propose(context, open_ids, what, 4)
    await engine.verify_tokens(context, open_ids, second, what)
    assert drafted == [len(open_ids) - min(first.num_accepted, 3), 1, 1, 1]
    assert verified == [1 + 4]


async def test_another_tokenizer_does_not_match(engine: TorchEngine) -> None:
    proposal = replace(certainly(engine, (5,)), tokenizer="another")
    with pytest.raises(Mismatch, match="choose a strategy"):
        await engine.verify_tokens(await prompt(engine), (), proposal, params())


@pytest.mark.parametrize(
    ("token_ids", "distribution"),
    [
        ((10**6,), Distribution(b"", b"")),
        ((5,), Distribution(struct.pack("<I", 6), struct.pack("<f", 1))),
        ((5,), Distribution(struct.pack("<2I", 6, 5), struct.pack("<2f", 0.5, 0.5))),
        ((5,), Distribution(struct.pack("<2I", 5, 5), struct.pack("<2f", 0.5, 0.5))),
        ((5,), Distribution(struct.pack("<2I", 5, 6), struct.pack("<2f", 0, 1))),
        ((5,), Distribution(struct.pack("<2I", 5, 6), struct.pack("<2f", 0.5, 0.4))),
        ((5,), Distribution(struct.pack("<I", 5), struct.pack("<f", 1.5))),
        ((5,), Distribution(struct.pack("<I", 5), struct.pack("<f", float("nan")))),
    ],
)
async def test_malformed_proposal_is_refused_by_field(
    engine: TorchEngine, token_ids: tuple[int, ...], distribution: Distribution
) -> None:
    proposal = replace(certainly(engine, token_ids), distributions=(distribution,))
    with pytest.raises(InvalidRequest) as refusal:
        await engine.verify_tokens(await prompt(engine), (), proposal, params())
    assert refusal.value.parameter == "proposal.distributions[0]"


async def test_open_tokens_that_leave_no_room_are_refused(engine: TorchEngine) -> None:
    context, nothing = await prompt(engine), Proposal((), (), "", 0.0)
    for call in (
        engine.verify_tokens(context, (10**6,), nothing, params()),
        engine.verify_tokens(context, (5,) * 3, nothing, params(max_tokens=3)),
        engine.propose(context, (10**6,), params(), 1),
    ):
        with pytest.raises(InvalidRequest) as refusal:
            await call
        assert str(refusal.value.parameter).startswith("open_ids")
