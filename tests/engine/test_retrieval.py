"""Retrieved proposals on engines: what is written with a datastore's help is what the target writes alone."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semspec.decoding import Backends, Generation, RetrievalOptions
from semspec.decoding.retrieval.datastore import Datastore
from semspec.decoding.retrieval.drafter import RetrievingDraft
from semspec.engine.torch_engine import TorchEngine
from semspec.errors import InvalidRequest, Mismatch
from semspec.types import Context, Proposal, Retrieval, SamplingParams, SegmentRecord, Writer
from tests.decoding.support import ConstantVerifier
from tests.engine.support import (
    Load,
    assert_distributed,
    certainly,
    greedy,
    pairs,
    params,
    prompt,
    tokens_of,
)
from tests.helpers.engines import assert_same, behind_sockets, trace
from tests.helpers.fakes import FakeVerifier
from tests.helpers.variants import PLAIN, changed
from tests.retrieval.support import write


@pytest.fixture
def checkpoint(checkpoints: dict[str, Path]) -> Path:
    """The target's."""
    return checkpoints["qwen2"]


async def states_of(engine: TorchEngine, ids: list[int], layer: int) -> np.ndarray:
    forward = engine.lm.forward(ids, engine.lm.new_kv(), want_states=True)
    return forward.states[layer].float().numpy()


@pytest.fixture
async def datastore(engine: TorchEngine, tmp_path: Path) -> Datastore:
    """Of an answer that is the target's own but for every seventh token."""
    answer = await greedy(engine, 80)
    document = [*(await prompt(engine)).pieces[0].token_ids, *answer]
    for index in range(len(document) - len(answer) + 3, len(document), 7):
        document[index] = (document[index] + 1) % 50
    write(tmp_path, await engine.info(), [document])
    return Datastore.load(tmp_path)


@pytest.fixture
async def backends(
    engine: TorchEngine, datastore: Datastore, checkpoints: dict[str, Path], load: Load
) -> Backends:
    draft = load(checkpoints["llama"], Writer.DRAFT)
    return Backends(
        RetrievingDraft(draft, datastore), engine, ConstantVerifier(1.0, 0.0)
    )  # rejects all


async def records(
    backends: Backends, strategy: str = "retrieval", **fields: Any
) -> list[SegmentRecord]:
    context = Context((await backends.target.encode("Tom has pens: 25. Day 1: Tom sells 6 pens."),))
    generation = changed(
        Generation(context, SamplingParams(0), 80, session="s", strategy=PLAIN), strategy, **fields
    )
    return await trace(generation, backends)


@pytest.mark.parametrize("num_tokens", [1, 5, 40])
async def test_equals_target(backends: Backends, engine: TorchEngine, num_tokens: int) -> None:
    context = await prompt(engine)
    alone = await records(backends, context=context, strategy="target")
    helped = await records(backends, context=context, num_speculative_tokens=num_tokens)
    assert [record.segment for record in helped] == [record.segment for record in alone]
    num_accepted = sum(record.num_accepted_tokens for record in helped)
    num_proposed = sum(record.num_proposed_tokens for record in helped)
    assert 80 * num_tokens / (num_tokens + 1) * 0.4 < num_accepted <= num_proposed
    assert not any(record.fallback for record in helped)


@pytest.mark.parametrize(
    "sampling", [SamplingParams(0), SamplingParams(0.3, 0.9, 0, 1), SamplingParams(1, 0.97, 0, 2)]
)
async def test_rewrites(backends: Backends, engine: TorchEngine, sampling: SamplingParams) -> None:
    fields: dict[str, Any] = {"context": await prompt(engine), "sampling": sampling}
    plain = await records(backends, strategy="semantic", **fields)
    assert plain and not any(record.accepted for record in plain)
    for options in ({}, {"retrieval": RetrievalOptions("context")}):
        helped = await records(backends, strategy="semantic+retrieval", **fields, **options)
        assert [(r.segment, r.rejected, r.draw) for r in helped] == [
            (r.segment, r.rejected, r.draw) for r in plain
        ]
        assert not any(record.fallback for record in helped)
        assert sum(record.num_proposed_tokens for record in helped) > 0
        if sampling.temperature == 0 and not options:
            assert sum(record.num_accepted_tokens for record in helped) > 20


@pytest.mark.parametrize("strategy", ["retrieval", "semantic+retrieval"])
async def test_keeps_distribution(backends: Backends, engine: TorchEngine, strategy: str) -> None:
    """Chi-square of the first two tokens at fixed seeds, 0.1% level, with a store that proposes likely tokens. Of
    rewrites too, although the segments that they replace were rejected."""
    context, sampling = await prompt(engine), SamplingParams(1.5, 1.0, 3)
    counts: Counter[tuple[int, ...]] = Counter()
    num_proposed = num_accepted = 0
    for seed in range(250):
        own = replace(sampling, seed=seed)
        fields: dict[str, Any] = {
            "context": context,
            "sampling": own,
            "max_tokens": 2,
            "strategy": strategy,
        }
        written = await records(backends, **fields)
        counts[tuple(token for record in written for token in record.segment.token_ids)] += 1
        num_proposed += sum(record.num_proposed_tokens for record in written)
        num_accepted += sum(record.num_accepted_tokens for record in written)
    assert_distributed(counts, pairs(engine, context, sampling))
    assert 0 < num_accepted < num_proposed


async def test_returned_state_is_that_before_the_last_token(engine: TorchEngine) -> None:
    context, layer = await prompt(engine), 1
    answer = await greedy(engine, 20)
    prompt_ids = list(context.pieces[0].token_ids)
    states = await states_of(engine, [*prompt_ids, *answer], layer)
    wrong = (answer[8] + 1) % 50
    what = params(sampling=SamplingParams(0), max_segments=0, session="s")
    await engine.verify_tokens(context, (), Proposal((), (), "", 0.0), what)
    for open_ids, drafted, num_kept in (
        (answer[:4], answer[4:8], 5),  # all accepted, and one more
        (answer[:5], [*answer[5:8], wrong], 4),  # the last one is corrected
        (answer[:6], [(answer[6] + 1) % 50], 1),
        (answer[:7], [], 1),
    ):
        proposal = replace(certainly(engine, tuple(drafted)), state_layer=layer)
        verified = await engine.verify_tokens(context, tuple(open_ids), proposal, what)
        assert verified.num_accepted == num_kept - 1
        written = tokens_of(verified)
        assert written == answer[: len(written)] and len(written) == len(open_ids) + num_kept
        expected = states[len(prompt_ids) + len(written) - 2]
        assert np.allclose(np.frombuffer(verified.state, "<f4"), expected, rtol=1e-3, atol=1e-4)


async def test_state_is_returned_only_where_it_is_asked_for_and_known(engine: TorchEngine) -> None:
    context, what = await prompt(engine), params(max_segments=0)
    assert (await engine.verify_tokens(context, (), certainly(engine, (5,)), what)).state == b""
    wanting = replace(certainly(engine, (5,)), state_layer=2)
    verified = await engine.verify_tokens(context, (5,), wanting, what)
    assert len(verified.state) == 4 * (await engine.info()).hidden_size
    for layer in (-1, 99):
        with pytest.raises(InvalidRequest, match="state_layer"):
            await engine.verify_tokens(context, (), replace(wanting, state_layer=layer), what)


async def test_datastore_without_model(engine: TorchEngine, datastore: Datastore) -> None:
    alone = RetrievingDraft(None, datastore)
    info, context = await alone.info(), await prompt(engine)
    assert (
        not info.has_model and info.datastore and info.tokenizer == (await engine.info()).tokenizer
    )
    async with behind_sockets(alone, engine, FakeVerifier()) as remote:
        assert await remote.drafter.info() == info
        helped = await records(remote, context=context)
        with pytest.raises(Mismatch, match="SEMSPEC_DRAFT_MODEL"):
            await remote.drafter.encode("Tom")
        with pytest.raises(Mismatch, match="a datastore and no model"):
            [one async for one in remote.drafter.generate(context, params())]
        with pytest.raises(Mismatch, match="a datastore and no model"):
            await remote.drafter.propose(context, (), params(), 4)
    by_target = await records(
        Backends(alone, engine, FakeVerifier()), context=context, strategy="target"
    )
    assert [one.segment for one in helped] == [one.segment for one in by_target]
    assert sum(one.num_accepted_tokens for one in helped) > 30
    assert not any(one.fallback for one in helped)


async def test_engine_without_a_datastore_lets_the_target_write_alone(engine: TorchEngine) -> None:
    with pytest.raises(Mismatch, match="SEMSPEC_DRAFT_DATASTORE"):
        await engine.propose(await prompt(engine), (), params(retrieval=Retrieval()), 4)
    written = await records(Backends(engine, engine, FakeVerifier()))
    assert written and all(record.fallback for record in written)


@pytest.mark.parametrize("with_neighbours", [False, True])
async def test_retrieval_over_grpc_equals_that_in_process(
    engine: TorchEngine,
    checkpoints: dict[str, Path],
    load: Load,
    tmp_path: Path,
    with_neighbours: bool,
) -> None:
    context = await prompt(engine)
    sampled: dict[str, Any] = {"context": context, "sampling": SamplingParams(0.8, 1.0, 0, 3)}
    alone = await records(Backends(engine, engine, FakeVerifier()), strategy="target", **sampled)
    answers = [
        await greedy(engine, 80),
        [token for record in alone for token in record.segment.token_ids],
    ]
    documents = [[*context.pieces[0].token_ids, *answer] for answer in answers]
    states = None
    if with_neighbours:
        pytest.importorskip("faiss")
        each = [await states_of(engine, document, 1) for document in documents]
        # The state before each token, and before the document's end.
        states = np.concatenate([np.concatenate([one[:1], one]) for one in each])
    write(tmp_path, await engine.info(), documents, states)
    draft = load(checkpoints["llama"], Writer.DRAFT)
    retrieving = RetrievingDraft(draft, Datastore.load(tmp_path))
    local = Backends(retrieving, engine, FakeVerifier())
    greedy_chain: dict[str, Any] = {"context": context, "num_speculative_tokens": 3}
    async with behind_sockets(retrieving, engine, FakeVerifier()) as remote:
        assert await remote.drafter.info() == await retrieving.info()
        for fields in (sampled, greedy_chain):
            here = await records(local, **fields)
            assert_same(here, await records(remote, **fields))
            assert sum(r.num_accepted_tokens for r in here) > 0
            assert not any(r.fallback for r in here)
