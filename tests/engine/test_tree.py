"""Trees of proposed tokens: one forward pass gives each path what the path alone gets, and one path is kept."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from semspec.engine.causal_lm import CausalLM, Forward
from semspec.engine.kv_cache import Chunk
from semspec.engine.requests import Verify
from semspec.engine.speculative import gated_tokens
from semspec.engine.steps import Feed, Output, Prefix, run_step
from semspec.engine.transformers_engine import TransformersEngine
from semspec.engine.tree import Tree, as_chain, paths_of
from semspec.engine.worker import Scheduler
from semspec.errors import InvalidRequest
from semspec.types import Context, Distribution, Gate, Proposal, SamplingParams
from tests.engine.models import lm_of, random_ids, random_model
from tests.engine.support import (
    GATE,
    UNSURE,
    Load,
    assert_same,
    certainly,
    greedy,
    params,
    prompt,
    segments_of,
    tokens_of,
)

PARENTS = (-1, 0, -1, 1, 1, 2, 4, 0)
"""A tree with paths of one to four tokens."""
trees = st.lists(st.integers(0, 99), max_size=12).map(lambda ns: [n % (i + 1) - 1 for i, n in enumerate(ns)])


def path_to(index: int, parents: Sequence[int] = PARENTS) -> list[int]:
    return [] if index < 0 else [*path_to(parents[index], parents), index]


@given(trees, st.integers(0, 5), st.data())
def test_each_token_sees_its_own_path_at_its_own_position(parents: list[int], before: int, data: st.DataObject) -> None:
    tree, end = Tree(before, parents), before + len(parents)
    start = data.draw(st.integers(0, end))
    hidden, positions = tree.hidden(start, end), tree.positions(start, end)
    for place in range(start, end):
        own = path_to(place - before, parents) if place >= before else []
        seen = {*range(min(place + 1, before)), *(before + index for index in own)}
        assert {one for one in range(end) if not hidden[place - start, one]} == seen
        assert positions[place - start] == len(seen) - 1


@given(trees)
def test_paths_end_at_tokens_without_a_child(parents: list[int]) -> None:
    leaves = [index for index in range(len(parents)) if index not in parents]
    assert paths_of(parents) == ([path_to(index, parents) for index in leaves] or [[]])


@pytest.fixture(scope="module", params=["qwen2", "llama"])
def lm(request: pytest.FixtureRequest) -> CausalLM:
    return lm_of(random_model(request.param), "fast")


def along(lm: CausalLM, context: list[int], drafted: list[int], index: int) -> Forward:
    """The result of the last token when the path to `drafted[index]` is fed alone."""
    ids = [*context, *(drafted[step] for step in path_to(index))]
    return lm.forward(ids, lm.new_kv(), 1, want_states=True)


def assert_like_paths(lm: CausalLM, context: list[int], drafted: list[int], tree: Forward) -> None:
    """`tree`: logits and states of all of `drafted`."""
    for index in range(len(drafted)):
        alone = along(lm, context, drafted, index)
        assert_same(tree.logits[index - len(drafted)].float(), alone.logits[-1].float())
        assert_same(tree.states[:, index - len(drafted)].float(), alone.states[:, -1].float())


@pytest.mark.parametrize("num_known", [0, 1, 30])
def test_paths_of_a_tree_are_as_if_fed_alone(lm: CausalLM, num_known: int) -> None:
    ids = random_ids(40)
    context, drafted = ids[:32], ids[32:]
    kv = lm.new_kv()
    if num_known:
        lm.forward(context[:num_known], kv)
    other = lm.new_kv()
    lm.forward(ids[:9], other)
    chunk = Chunk([*context[num_known:], *drafted], kv, len(drafted), True, Tree(32, PARENTS))
    with_tree, single = lm.forward_step([chunk, Chunk([ids[9]], other, 1, True)])
    assert_like_paths(lm, context, drafted, with_tree)
    assert_same(single.logits, lm.forward(ids[:10], lm.new_kv()).logits)


@pytest.mark.parametrize("length", [32, 250])
def test_kept_path_goes_on_as_if_fed_alone(lm: CausalLM, length: int) -> None:
    """After 250 tokens, the tree makes the buffer grow."""
    ids = random_ids(length + 9)
    context, drafted = ids[:length], ids[length:-1]
    for index in range(len(drafted)):
        path = path_to(index)
        prefix = Prefix(lm.new_kv())
        feed = Feed(prefix, [*context, *drafted], tree=Tree(length, PARENTS))
        for num_tokens in (length, len(drafted)):
            run_step(lm, [(feed, num_tokens)])
        prefix.keep(length, path)
        kept = [*context, *(drafted[step] for step in path)]
        assert prefix.tokens == kept and prefix.kv.num_tokens == len(kept)
        assert not {position for position in prefix.logits if position > length} - {len(kept)}
        expected = lm.forward([*kept, ids[-1]], lm.new_kv()).logits
        assert_same(lm.forward([ids[-1]], prefix.kv).logits, expected)


@pytest.mark.parametrize("evicted_at", [None, 0, 3, 5])
def test_tree_fed_in_parts_and_after_an_eviction_is_the_same(lm: CausalLM, evicted_at: int | None) -> None:
    ids = random_ids(40)
    context, drafted = ids[:32], ids[32:]
    feed = Feed(Prefix(lm.new_kv()), [*context, *drafted], len(drafted), (1,) * 8, tree=Tree(32, PARENTS))
    outputs: list[tuple[Feed, Output]] = []
    for number, size in enumerate((29, 4, 1, 1, 2, 40, 40)):
        if number == evicted_at:
            feed.prefix.kv.clear()
        if not outputs:
            outputs = run_step(lm, [(feed, min(size, feed.num_left))])
    [(_, output)] = outputs
    assert_like_paths(lm, context, drafted, Forward(output.rows, torch.stack(list(output.pooled), 1)))


def a_tree(engine: TransformersEngine, truth: Sequence[int], rng: random.Random) -> tuple[Proposal, int]:
    """A tree with part of the `truth` on one path, and how many tokens of it."""
    parents, tokens, right = list[int](), list[int](), [-1]
    children: dict[int, set[int]] = {}
    for index in range(rng.randrange(1, 14)):
        parent = right[-1] if rng.random() < 0.6 else rng.randrange(-1, index)
        is_right = parent == right[-1] and rng.random() < 0.7 and len(right) <= len(truth)
        token = truth[len(right) - 1] if is_right else rng.randrange(50)
        if token in children.setdefault(parent, set()):
            token = next(one for one in range(50) if one not in children[parent])
            is_right = False
        elif parent == right[-1] and len(right) <= len(truth) and token == truth[len(right) - 1]:
            is_right = True
        children[parent].add(token)
        parents.append(parent)
        tokens.append(token)
        if is_right:
            right.append(index)
    return replace(certainly(engine, tuple(tokens)), parents=tuple(parents)), len(right) - 1


@pytest.mark.parametrize("seed", range(3))
async def test_greedy_tree_keeps_the_targets_own_path_and_changes_nothing(
    engine: TransformersEngine, seed: int
) -> None:
    rng, context = random.Random(seed), await prompt(engine)
    answer, open_ids, total = await greedy(engine, 60), tuple[int, ...](), 0
    what = params(sampling=SamplingParams(0), max_segments=0, max_tokens=60, session="s")
    while len(segment_tokens(context)) + len(open_ids) < 45:
        done = len(segment_tokens(context)) + len(open_ids)
        proposal, num_right = a_tree(engine, answer[done:55], rng)
        rest = replace(what, max_tokens=60 - len(segment_tokens(context)))
        verified = await engine.verify_tokens(context, open_ids, replace(proposal, state_layer=1), rest)
        context, open_ids = context.extended(*verified.segments), verified.open_ids
        assert verified.num_accepted == num_right
        assert [*segment_tokens(context), *open_ids] == answer[: done + num_right + 1]
        fed = [*context.pieces[0].token_ids, *answer[: done + num_right]]
        state = engine.lm.forward(fed, engine.lm.new_kv(), want_states=True).states[1, -1]
        if verified.state:
            assert_same(torch.frombuffer(bytearray(verified.state), dtype=torch.float32), state.float(), 1e-4)
        total += num_right
    assert total > 15


def segment_tokens(context: Context) -> list[int]:
    return [token for piece in context.pieces[1:] for token in piece.token_ids]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_engine_without_trees_verifies_the_first_alternatives(
    checkpoint: Path, load: Load, temperature: float
) -> None:
    engine = load(checkpoint, engine="transformers")
    context = await prompt(engine)
    what = params(sampling=SamplingParams(temperature, seed=3), max_segments=0, max_tokens=9)
    alone = await segments_of(engine, context, what)
    answer = [token for one in alone for token in one.token_ids]
    tree = certainly(engine, (answer[0], 1, answer[1], 2, answer[2]))
    verified = await engine.verify_tokens(context, (), replace(tree, parents=(-1, -1, 0, 0, 2)), what)
    assert verified.num_accepted == 3 and tokens_of(verified) == answer[:4]


async def test_tree_that_leaves_no_room_or_is_too_large_is_verified_as_a_chain(
    engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, answer = await prompt(engine), await greedy(engine, 60)
    tree = replace(certainly(engine, (1, *answer[:3])), parents=(-1, -1, 1, 2))
    for max_tokens, limit, num_kept, num_written in ((2, 9, 0, 1), (3, 9, 3, 3), (9, 9, 3, 4), (9, 3, 0, 1)):
        monkeypatch.setattr(engine, "max_tree_tokens", limit)
        what = params(sampling=SamplingParams(0), max_segments=0, max_tokens=max_tokens)
        verified = await engine.verify_tokens(context, (), tree, what)
        assert verified.num_accepted == num_kept and tokens_of(verified) == answer[:num_written]


def test_chain_of_a_tree_takes_the_first_alternatives() -> None:
    one = tuple(map(Distribution.certain, range(8)))
    tree = Proposal(tuple(range(8)), one, "t", 0.0, None, PARENTS)
    assert as_chain(tree).token_ids == (0, 1, 3) and as_chain(tree).parents == ()
    assert as_chain(tree).distributions == (one[0], one[1], one[3])
    assert as_chain(as_chain(tree)) == as_chain(tree)


async def test_tree_of_drawn_tokens_is_refused(engine: TransformersEngine) -> None:
    halves = Distribution(b"\x05\0\0\0\x06\0\0\0", b"\0\0\0?" * 2)
    tree = replace(certainly(engine, (5, 6)), parents=(-1, -1))
    with pytest.raises(InvalidRequest, match="tokens of a tree are not drawn") as refusal:
        await engine.verify_tokens(await prompt(engine), (), replace(tree, distributions=(halves, halves)), params())
    assert refusal.value.parameter == "proposal.distributions[0]"


async def test_call_cancelled_within_a_tree_leaves_no_trace(engine: TransformersEngine) -> None:
    context, what = await prompt(engine), params(sampling=SamplingParams(0), max_segments=0, max_tokens=12, session="s")
    expected = await greedy(engine, 12)
    wrong = [(token + 1) % 50 for token in expected[:6]]
    tree = replace(certainly(engine, (*expected[:3], *wrong)), parents=(-1, 0, 1, -1, 3, 4, 5, 6, 7))
    for num_tokens in range(1, 12):
        engine.cache.clear()
        await engine.score(context, [(await segments_of(engine, context, what))[0]], "s")
        tokens = [*engine.tokenizer.context_ids(context), *tree.token_ids]
        request = Verify(tree.token_ids, 9, tree.distributions, what.sampling, False, None, tree.parents)
        call = engine.calls.run(tokens, request, "s")
        feed = next(call)
        assert isinstance(feed, Feed)
        run_step(engine.lm, [(feed, min(num_tokens, feed.num_left))])
        call.close()
        for entry in engine.cache.prefixes:
            assert entry.kv.num_tokens == len(entry.tokens)
            assert not set(entry.tokens[len(context.pieces[0].token_ids) :]) & set(wrong) - set(expected)
        assert await greedy(engine, 12) == expected


async def test_trees_and_other_calls_share_steps_of_few_tokens(engine: TransformersEngine) -> None:
    context, answer = await prompt(engine), await greedy(engine, 60)
    what = params(sampling=SamplingParams(0), max_segments=0, max_tokens=60)
    engine.steps.scheduler = Scheduler(engine.cache, 4 << 30, 5)
    tree = replace(certainly(engine, (answer[0], 1, answer[1], 2, answer[2])), parents=(-1, -1, 0, 0, 2))
    calls = (engine.verify_tokens(context, (), tree, replace(what, session=f"{number}")) for number in range(4))
    both = asyncio.gather(*calls), greedy(engine, 60)
    verified, again = await asyncio.gather(*both)
    assert [one.num_accepted for one in verified] == [3] * 4 and again == answer


def test_soft_gate_keeps_the_longest_path() -> None:
    rows, drafted = torch.stack([UNSURE] * 6), [3, 1, 0, 0, 0]
    chosen, path, recent = gated_tokens(rows, drafted, GATE, None, (-1, -1, 1, 0, 2))
    assert (chosen, path, recent) == ([1, 0, 0, 0], [1, 2, 4], (True, False, False))
    shut = Gate(entropy=1.0)
    assert gated_tokens(rows, drafted, shut, None, (-1, -1, 1, 0, 2))[:2] == ([0], [])
