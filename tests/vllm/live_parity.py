"""vLLM's states, scores and draws are ours, alone and among others."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from semspec.engine.torch_engine import TorchEngine
from semspec.engine.vllm.engine import VllmEngine
from semspec.engine.vllm.options import CPU_BLOCK_SIZE
from semspec.errors import ContextTooLong, InvalidRequest
from semspec.types import (
    Context,
    Distribution,
    Penalties,
    Piece,
    Proposal,
    SamplingParams,
    Segmentation,
    derive_seed,
)
from tests.grammars.schemas import MANY, grammar_of
from tests.vllm.support import (
    assert_same_scores,
    assert_same_segments,
    contexts,
    params,
    segments_of,
    states_error,
    written,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")

NUM_STREAMS = 16


async def test_both_engines_name_the_same_model(theirs: VllmEngine, ours: TorchEngine) -> None:
    one, other = await theirs.info(), await ours.info()
    assert replace(one, max_cache_bytes=0) == replace(other, max_cache_bytes=0)


@pytest.mark.parametrize("segmentation", list(Segmentation))
@pytest.mark.parametrize("temperature", [0.0, 0.6])
async def test_streams_that_share_steps_write_what_ours_writes(
    theirs: VllmEngine, ours: TorchEngine, segmentation: Segmentation, temperature: float
) -> None:
    started = await contexts(ours, NUM_STREAMS)
    wanted = [params(seed, temperature, segmentation=segmentation) for seed in range(NUM_STREAMS)]
    mine = await asyncio.gather(*map(written, [theirs] * NUM_STREAMS, started, wanted))
    expected = await asyncio.gather(*map(written, [ours] * NUM_STREAMS, started, wanted))
    num_same = 0
    for context, what, one, other in zip(started, wanted, mine, expected, strict=True):
        num_same += assert_same_segments(ours, context, what, one, other)
    assert num_same > 0.9 * sum(len(one.segment.token_ids) for all_ in expected for one in all_)


@pytest.mark.parametrize("segmentation", list(Segmentation))
async def test_one_call_equals_many(theirs: VllmEngine, segmentation: Segmentation) -> None:
    for seed, context in enumerate(await contexts(theirs, 4)):
        what = params(seed, segmentation=segmentation)
        whole, num_left = await written(theirs, context, what), what.max_tokens
        assert len(whole) > 1
        for one in whole:
            [single] = await written(
                theirs, context, replace(what, max_segments=1, max_tokens=num_left)
            )
            assert single.segment == one.segment
            assert states_error(single.states, one.states) < 1e-5
            context, num_left = context.extended(one.segment), num_left - len(one.segment.token_ids)


async def test_projected_states_equal_ours(theirs: VllmEngine, ours: TorchEngine) -> None:
    """A projection that is not held gives whole states, and the folder is looked into again."""
    [digest, *_] = projections = (await theirs.info()).projections
    assert projections == (await ours.info()).projections
    for seed, context in enumerate(await contexts(ours, 4)):
        all_ = await written(theirs, context, params(seed, projection=digest))
        read = [
            await engine.score(context, segments_of(all_), "", digest) for engine in (theirs, ours)
        ]
        for one, mine, other in zip(all_, *read, strict=True):
            assert one.states
            assert one.states.projection == digest
            assert one.states.shape == mine.states.shape
            assert states_error(one.states, other.states) < 1e-4
            assert states_error(mine.states, other.states) < 1e-4
    [whole] = await theirs.score(context, segments_of(all_)[:1], "", "unknown")
    assert not whole.states.projection


async def test_cached_scores(theirs: VllmEngine, small: VllmEngine, ours: TorchEngine) -> None:
    """Read twice, the second time with the context and the segments in the cache; `small` keeps none."""
    started = await contexts(ours, NUM_STREAMS)
    segments = [segments_of(await written(ours, one, params(7, max_tokens=60))) for one in started]
    expected = await asyncio.gather(*map(ours.score, started, segments))
    for engine in (theirs, theirs, small):
        found = await asyncio.gather(*map(engine.score, started, segments))
        for one, other in zip(found, expected, strict=True):
            assert_same_scores(one, other)
        cached = [scores[0].num_cached_tokens for scores in found]
        assert None not in cached and (engine is not small or not any(cached))
    longest, read = max(zip(started, segments, strict=True), key=lambda pair: len(pair[1]))
    [last] = await theirs.score(longest.extended(*read[:-1]), read[-1:])
    assert (last.num_cached_tokens or 0) >= CPU_BLOCK_SIZE


async def test_logprobs_are_ours(theirs: VllmEngine, ours: TorchEngine) -> None:
    [context] = await contexts(ours, 1)
    what = params(3, want_states=False, num_logprobs=3)
    for one, other in zip(
        await written(theirs, context, what), await written(ours, context, what), strict=True
    ):
        assert one.states is None and one.logprobs and other.logprobs
        assert len(one.logprobs) == len(one.segment.token_ids)
        for told, expected in zip(one.logprobs, other.logprobs, strict=True):
            assert (told.token_id, told.data) == (expected.token_id, expected.data)
            assert told.logprob == pytest.approx(expected.logprob, abs=1e-4)
            one_row, other_row = ([a.logprob for a in row.alternatives] for row in (told, expected))
            assert one_row == pytest.approx(other_row, abs=1e-3)


async def test_penalties_and_grammars_equal_ours(theirs: VllmEngine, ours: TorchEngine) -> None:
    """By the prompt, by segments before the call, and by its own."""
    for seed, context in enumerate(await contexts(ours, 6)):
        grammar = "start: /[A-Z][a-z ]{4,30}\\.( [A-Z][a-z ]{4,9}[.!])*/" if seed % 2 else ""
        least = 0 if grammar else 50
        what = params(
            seed, max_tokens=60, penalties=Penalties(0.4, 0.6, 1.3, ((5, 2.0),)), grammar=grammar
        )
        what = replace(what, min_tokens=least)
        expected = await written(ours, context, what)
        assert segments_of(expected) != segments_of(
            await written(ours, context, params(seed, max_tokens=60))
        )
        assert_same_segments(ours, context, what, await written(theirs, context, what), expected)
        grown, rest = context.extended(expected[0].segment), replace(what, max_tokens=20)
        assert segments_of(await written(theirs, grown, rest)) == segments_of(
            await written(ours, grown, rest)
        )


@pytest.mark.parametrize("temperature", [0.0, 0.9])
async def test_proposals_equal(theirs: VllmEngine, ours: TorchEngine, temperature: float) -> None:
    """The target proposes with another random stream, so some tokens are rejected when they are sampled."""
    started, num_accepted = await contexts(ours, NUM_STREAMS), 0
    drafting = [
        params(derive_seed(seed, "draft", 0), 1.3 * temperature) for seed in range(NUM_STREAMS)
    ]
    proposals = await asyncio.gather(
        *(ours.propose(c, (), d, 6) for c, d in zip(started, drafting, strict=True))
    )
    found = await asyncio.gather(
        *(theirs.propose(c, (), d, 6) for c, d in zip(started, drafting, strict=True))
    )
    for mine, expected in zip(found, proposals, strict=True):
        assert (mine.token_ids, mine.tokenizer) == (expected.token_ids, expected.tokenizer)
        for one, other in zip(mine.distributions, expected.distributions, strict=True):
            assert one.token_ids == other.token_ids
            told, wanted = (np.frombuffer(each.probabilities, "<f4") for each in (one, other))
            np.testing.assert_allclose(told, wanted, atol=1e-5)
    for seed, (context, proposal) in enumerate(zip(started, proposals, strict=True)):
        what = params(seed, temperature)
        verified, expected_tokens = [
            await one.verify_tokens(context, (), proposal, what) for one in (theirs, ours)
        ]
        assert replace(verified, duration_ms=0) == replace(expected_tokens, duration_ms=0)
        num_accepted += verified.num_accepted
    num_proposed = sum(len(proposal.token_ids) for proposal in proposals)
    assert num_accepted == num_proposed if temperature == 0 else num_accepted > num_proposed / 2


async def test_verification_returns_the_state_that_ours_returns(
    theirs: VllmEngine, ours: TorchEngine
) -> None:
    for index, context in enumerate(await contexts(ours, 4)):
        greedy = params(index, 0.0)
        drafted = list((await ours.propose(context, (), greedy, 6)).token_ids)
        drafted[index] = (drafted[index] + 1) % 50  # the first token that is rejected
        certain = tuple(map(Distribution.certain, drafted))
        proposal = Proposal(tuple(drafted), certain, context.pieces[0].tokenizer, 0.0)
        for layer in (0, 20, ours.tokenizer.info.num_layers):
            found, expected = [
                await engine.verify_tokens(
                    context, (), replace(proposal, state_layer=layer), greedy
                )
                for engine in (theirs, ours)
            ]
            assert replace(found, duration_ms=0, state=b"") == replace(
                expected, duration_ms=0, state=b""
            )
            assert found.num_accepted == index
            state, reference = (np.frombuffer(one.state, "<f4") for one in (found, expected))
            assert len(state) == ours.tokenizer.info.hidden_size
            if index:  # else ours has read the token before the first one in another call
                np.testing.assert_allclose(state, reference, rtol=1e-3, atol=1e-4)
    assert not (await theirs.verify_tokens(context, (), proposal, greedy)).state


async def test_sentence_of_another_writer_goes_on_as_ours(
    theirs: VllmEngine, ours: TorchEngine
) -> None:
    """The first token after a sentence that a look-ahead ended begins with white space."""
    started = await contexts(ours, NUM_STREAMS)
    for seed, context in enumerate(started):
        what = params(seed, 1.2, segmentation=Segmentation.SENTENCE, max_segments=1)
        [first] = await written(ours, context, what)
        context = context.extended(first.segment)
        again = replace(what, sampling=SamplingParams(1.2, 1.0, 0, 1000 + seed))
        mine, expected = await written(theirs, context, again), await written(ours, context, again)
        assert_same_segments(ours, context, again, mine, expected)


async def test_window_ends_segment_at_same_token(theirs: VllmEngine, ours: TorchEngine) -> None:
    window = (await ours.info()).max_context_tokens
    [context] = await contexts(ours, 1)
    piece = context.pieces[0]
    for num_left in (1, 5):
        ids = (piece.token_ids * window)[: window - num_left]
        full = Context((Piece(ours.tokenizer.raw.decode(ids), ids, piece.tokenizer),))
        what = params(1, 0.0)
        mine, expected = await written(theirs, full, what), await written(ours, full, what)
        assert sum(len(one.segment.token_ids) for one in expected) <= num_left
        assert segments_of(mine) == segments_of(expected)
    for engine in (theirs, ours):
        with pytest.raises(ContextTooLong, match="leave no room in the window"):
            await written(engine, Context((replace(full.pieces[0], token_ids=(*ids, *ids)),)), what)


async def test_bad_input_is_refused_as_by_ours(theirs: VllmEngine, ours: TorchEngine) -> None:
    [context] = await contexts(ours, 1)
    for engine in (theirs, ours):
        for grammar, flaw in (("start: ]", "grammar: "), (grammar_of(MANY), "continuations")):
            with pytest.raises(InvalidRequest, match=flaw):
                await written(engine, context, params(0, grammar=grammar, max_tokens=400))
        with pytest.raises(InvalidRequest, match="nothing to score"):
            await engine.score(context, [])
        with pytest.raises(InvalidRequest, match="outside the vocabulary"):
            await engine.propose(context, (1 << 20,), params(0), 3)
