"""Rounds of drafting and verifying by engines, and looks inside."""

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest

from semspec.engine import speculative
from semspec.engine.causal_lm import Forward
from semspec.engine.kv_cache import KV, Chunk
from semspec.engine.prefix_cache import Prefix
from semspec.engine.steps import Steps
from semspec.engine.transformers_engine import TransformersEngine
from semspec.types import Context, Distribution, GenerationParams, Proposal, Segment, SegmentEnd, derive_seed, uniform
from tests.engine.test_equivalence import written


def own_stream(seed: int) -> int:
    """The draft's, apart from the target's."""
    return derive_seed(seed, "draft", 0)


async def speculated(
    drafter: TransformersEngine, target: TransformersEngine, context: Context, what: GenerationParams, gamma: int
) -> tuple[list[Segment], int]:
    """Segments written in rounds of drafting and verifying until `what` is fulfilled; how many tokens were accepted."""
    segments: list[Segment] = []
    open_ids: tuple[int, ...] = ()
    num_accepted = 0
    drafting = replace(what, sampling=replace(what.sampling, seed=own_stream(what.sampling.seed)))
    while not is_fulfilled(segments, what):
        rest = replace(what, max_tokens=what.max_tokens - sum(len(segment.token_ids) for segment in segments))
        proposal = await propose(drafter, context, open_ids, drafting, gamma)
        verified = await target.verify_tokens(context, open_ids, proposal, rest)
        segments += verified.segments
        context, open_ids = context.extended(*verified.segments), verified.open_ids
        num_accepted += verified.num_accepted
    return segments, num_accepted


async def propose(
    drafter: TransformersEngine, context: Context, open_ids: tuple[int, ...], what: GenerationParams, gamma: int
) -> Proposal:
    return await drafter.propose(context, open_ids, what, gamma) if gamma else Proposal((), (), "", 0.0)


def is_fulfilled(segments: list[Segment], what: GenerationParams) -> bool:
    num_tokens = sum(len(segment.token_ids) for segment in segments)
    has_ended = bool(segments) and segments[-1].end is SegmentEnd.EOS
    return has_ended or num_tokens == what.max_tokens or len(segments) == (what.max_segments or -1)


async def segments_of(engine: TransformersEngine, context: Context, what: GenerationParams) -> list[Segment]:
    return [one.segment for one in await written(engine, context, what)]


@contextmanager
def always_accepting() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speculative, "uniform", lambda seed, name, at: name == "token" and uniform(seed, name, at))
        yield


def certainly(engine: TransformersEngine, token_ids: tuple[int, ...]) -> Proposal:
    """Each token with probability 1."""
    one = struct.pack("<f", 1.0)
    distributions = tuple(Distribution(struct.pack("<I", token), one) for token in token_ids)
    return Proposal(token_ids, distributions, engine.tokenizer.info.tokenizer, 0.0)


def nearly_certainly(engine: TransformersEngine, token_ids: tuple[int, ...]) -> Proposal:
    """Each token with almost all of the probability, and the next id with the rest."""
    rest = struct.pack("<2f", 0.9999, 0.0001)
    distributions = tuple(Distribution(struct.pack("<2I", token, token + 1), rest) for token in token_ids)
    return replace(certainly(engine, token_ids), distributions=distributions)


def a_turn() -> Steps[bool]:
    yield True


async def only_prefix(engine: TransformersEngine) -> Prefix:
    """What the cache holds once the call that has just answered has given its prefix back."""
    await engine._result(a_turn())
    [(prefix, _)] = engine._cache._entries.values()
    return prefix


def spied(engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows with the number of tokens of each call in every forward."""
    sizes: list[int] = []
    forward_step = engine._lm.forward_step

    def counting(chunks: Sequence[Chunk[KV]]) -> list[Forward]:
        sizes.extend(len(chunk.tokens) for chunk in chunks)
        return forward_step(chunks)

    monkeypatch.setattr(engine._lm, "forward_step", counting)
    return sizes
