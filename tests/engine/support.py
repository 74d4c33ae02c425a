"""What the tests of engines share: prompts and parameters, rounds of drafting and verifying, and looks inside."""

import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from semspec.engine import speculative
from semspec.engine.causal_lm import Forward
from semspec.engine.kv_cache import KV, Chunk
from semspec.engine.logits import renormalised
from semspec.engine.torch_engine import TorchEngine
from semspec.types import (
    Context,
    Distribution,
    GeneratedSegment,
    GenerationParams,
    Proposal,
    SamplingParams,
    Segment,
    SegmentEnd,
    States,
    VerifiedTokens,
    Writer,
    derive_seed,
    uniform,
)

Load = Callable[..., TorchEngine]
"""Of a folder, with options of `TorchEngine.load`."""
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PROMPT = (
    "Tom has pens: 25. Day 1: Tom sells 6 pens. How many pens does Tom have now?\n\n<think>\n\n"
)
HOT = SamplingParams(temperature=1.0, top_p=1.0, seed=11)


def params(**fields: object) -> GenerationParams:
    defaults = {"sampling": HOT, "max_tokens": 120, "max_segment_tokens": 40}
    return GenerationParams(**(defaults | fields))  # type: ignore[arg-type]


async def prompt(engine: TorchEngine) -> Context:
    return Context((await engine.encode(PROMPT),))


def segment(engine: TorchEngine, text: str, end: SegmentEnd = SegmentEnd.BOUNDARY) -> Segment:
    """`text` by another model with the same tokenizer."""
    ids = tuple(engine.tokenizer.ids_of(text))
    return Segment(text, ids, engine.tokenizer.info.tokenizer, Writer.DRAFT, end)


async def written(
    engine: TorchEngine, context: Context, what: GenerationParams
) -> list[GeneratedSegment]:
    return [one async for one in engine.generate(context, what)]


async def answered(
    engine: TorchEngine, what: GenerationParams, *segments: Segment
) -> list[GeneratedSegment]:
    """What is written after the prompt and `segments`."""
    return await written(engine, (await prompt(engine)).extended(*segments), what)


def tensor(states: States | None) -> Tensor:
    assert states is not None
    return torch.frombuffer(bytearray(states.data), dtype=torch.float32).view(states.shape)


def assert_same(a: Tensor, b: Tensor, tolerance: float = 1e-5) -> None:
    assert float((a - b).norm() / b.norm()) < tolerance


def pairs(
    engine: TorchEngine, context: Context, sampling: SamplingParams
) -> dict[tuple[int, ...], float]:
    """Probability of the first two tokens that the engine's model writes after `context`; of one, where that ends the
    turn."""
    ids = engine.tokenizer.context_ids(context)

    def following(*tokens: int) -> dict[tuple[int, ...], float]:
        logits = engine.lm.forward([*ids, *tokens], engine.lm.new_kv()).logits
        return {
            (*tokens, *one): p
            for one, p in probabilities(renormalised(logits, sampling)[0]).items()
        }

    first, table = following(), dict[tuple[int, ...], float]()
    for (one,), share in first.items():
        ends = one in engine.tokenizer.eos_ids
        table |= (
            {(one,): share} if ends else {pair: share * p for pair, p in following(one).items()}
        )
    return table


def probabilities(row: Tensor) -> dict[tuple[int, ...], float]:
    """Of the tokens that `row` `[vocab_size]` does not exclude."""
    return {(token,): float(row[token]) for token in row.nonzero()[:, 0].tolist()}


def own_stream(seed: int) -> int:
    """The draft's, apart from the target's."""
    return derive_seed(seed, "draft", 0)


async def speculated(
    drafter: TorchEngine, target: TorchEngine, context: Context, what: GenerationParams, gamma: int
) -> tuple[list[Segment], int]:
    """Segments written in rounds of drafting and verifying until `what` is fulfilled; how many tokens were accepted."""
    segments: list[Segment] = []
    open_ids: tuple[int, ...] = ()
    num_accepted = 0
    drafting = replace(what, sampling=replace(what.sampling, seed=own_stream(what.sampling.seed)))
    while not is_fulfilled(segments, what):
        rest = replace(
            what, max_tokens=what.max_tokens - sum(len(segment.token_ids) for segment in segments)
        )
        proposal = await propose(drafter, context, open_ids, drafting, gamma)
        verified = await target.verify_tokens(context, open_ids, proposal, rest)
        segments += verified.segments
        context, open_ids = context.extended(*verified.segments), verified.open_ids
        num_accepted += verified.num_accepted
    return segments, num_accepted


async def propose(
    drafter: TorchEngine,
    context: Context,
    open_ids: tuple[int, ...],
    what: GenerationParams,
    gamma: int,
) -> Proposal:
    return (
        await drafter.propose(context, open_ids, what, gamma)
        if gamma
        else Proposal((), (), "", 0.0)
    )


def is_fulfilled(segments: list[Segment], what: GenerationParams) -> bool:
    num_tokens = sum(len(segment.token_ids) for segment in segments)
    has_ended = bool(segments) and segments[-1].end is SegmentEnd.EOS
    return has_ended or num_tokens == what.max_tokens or len(segments) == (what.max_segments or -1)


async def segments_of(
    engine: TorchEngine, context: Context, what: GenerationParams
) -> list[Segment]:
    return [one.segment for one in await written(engine, context, what)]


async def one_by_one(
    engine: TorchEngine, context: Context, what: GenerationParams
) -> list[Segment]:
    """What calls for a segment each write until `what` is fulfilled."""
    segments: list[Segment] = []
    while not is_fulfilled(segments, what):
        written = sum(len(segment.token_ids) for segment in segments)
        least, left = max(0, what.min_tokens - written), what.max_tokens - written
        single = replace(what, max_segments=1, max_tokens=left, min_tokens=least)
        segments += await segments_of(engine, context.extended(*segments), single)
    return segments


def tokens_of(verified: VerifiedTokens) -> list[int]:
    """All that a verification leaves written."""
    return [*(token for one in verified.segments for token in one.token_ids), *verified.open_ids]


async def greedy(engine: TorchEngine, num_tokens: int) -> list[int]:
    """What the engine writes greedily after the prompt."""
    what = params(sampling=SamplingParams(0), max_segments=0, max_tokens=num_tokens)
    return [
        token
        for one in await segments_of(engine, await prompt(engine), what)
        for token in one.token_ids
    ]


def assert_distributed(
    counts: Counter[tuple[int, ...]], expected: Mapping[tuple[int, ...], float]
) -> None:
    """By chi-square at the 0.1% level; `expected` holds the probability of all that may be counted."""
    assert counts.keys() <= expected.keys()
    share = counts.total() / sum(expected.values())
    assert (
        chisquare([counts[one] for one in expected], [share * p for p in expected.values()]).pvalue
        > 0.001
    )


@contextmanager
def always_accepting() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            speculative,
            "uniform",
            lambda seed, name, at: name == "token" and uniform(seed, name, at),
        )
        yield


def certainly(engine: TorchEngine, token_ids: tuple[int, ...]) -> Proposal:
    """Each token with probability 1."""
    return Proposal(
        token_ids, tuple(map(Distribution.certain, token_ids)), engine.tokenizer.info.tokenizer, 0.0
    )


def nearly_certainly(engine: TorchEngine, token_ids: tuple[int, ...]) -> Proposal:
    """Each token with almost all of the probability, and the next id with the rest."""
    rest = struct.pack("<2f", 0.9999, 0.0001)
    distributions = tuple(
        Distribution(struct.pack("<2I", token, token + 1), rest) for token in token_ids
    )
    return replace(certainly(engine, token_ids), distributions=distributions)


def before_each_step(engine: TorchEngine, call: Callable[[list[int]], object]) -> None:
    """Have `call` called with the number of tokens of each call in every step."""
    forward_step = engine.lm.forward_step

    def watched(chunks: Sequence[Chunk[KV]]) -> list[Forward]:
        call([len(chunk.tokens) for chunk in chunks])
        return forward_step(chunks)

    engine.lm.forward_step = watched  # type: ignore[method-assign]


def steps_of(engine: TorchEngine) -> list[list[int]]:
    """A list that grows with the numbers of tokens of each step's calls."""
    steps: list[list[int]] = []
    before_each_step(engine, steps.append)
    return steps


def sizes_of(engine: TorchEngine) -> list[int]:
    """A list that grows with the number of tokens of each call in every step."""
    sizes: list[int] = []
    before_each_step(engine, sizes.extend)
    return sizes
