"""Both engines over the bundled target, and how their results are compared."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import numpy as np
import torch

from semspec.engine.local import LocalEngine
from semspec.engine.logits import filtered
from semspec.engine.settings import ModelSettings
from semspec.engine.torch_engine import TorchEngine
from semspec.engine.vllm.engine import VllmEngine, load_vllm
from semspec.stack.config import BUNDLED_PAIR
from semspec.types import (
    Context,
    GeneratedSegment,
    GenerationParams,
    Message,
    SamplingParams,
    Segment,
    SegmentScore,
    States,
    Writer,
    uniform,
)
from semspec_demo.problems import SPLITS, make_problem

TARGET, PROBES = BUNDLED_PAIR / "target", BUNDLED_PAIR / "probes"
KV_BYTES = 256 << 20
START_TIMEOUT_S = 600.0
NEAR = 1e-5
"""A draw so close to a boundary between two tokens may fall on either side by rounding."""


SMALL_TOKENS = 480
"""Tokens whose keys and values the engine `small` has room for."""


@asynccontextmanager
async def vllm_engine(**settings: Any) -> AsyncIterator[tuple[VllmEngine, list[str]]]:
    """The engine over vLLM with the bundled target, and why vLLM ended if it did by itself."""
    reasons: list[str] = []
    values: dict[str, Any] = {
        "model": str(TARGET),
        "engine": "vllm",
        "kv_bytes": KV_BYTES,
        "threads": 1,
    }
    own = ModelSettings(**(values | settings))
    async with aclosing(
        await asyncio.to_thread(load_vllm, own, Writer.TARGET, reasons.append)
    ) as engine:
        assert has_runner_v2(engine) == ("TRITON_INTERPRET" in os.environ)
        yield engine, reasons


def has_runner_v2(engine: VllmEngine) -> bool:
    """Return whether vLLM has chosen Model Runner V2."""
    return bool(engine._processes._llm.vllm_config.use_v2_model_runner)


async def contexts(engine: LocalEngine, number: int) -> list[Context]:
    """Prompts of problems that no model was trained on."""
    questions = [make_problem(SPLITS["report"][index]).question for index in range(number)]
    return [Context((await engine.encode([Message("user", question)]),)) for question in questions]


def params(seed: int, temperature: float = 0.6, **fields: Any) -> GenerationParams:
    wanted = {
        "max_segments": 0,
        "max_tokens": 80,
        "max_segment_tokens": 40,
        "want_states": True,
    } | fields
    return GenerationParams(SamplingParams(temperature, 0.95, 0, seed), **wanted)


async def written(
    engine: LocalEngine, context: Context, what: GenerationParams
) -> list[GeneratedSegment]:
    return [one async for one in engine.generate(context, what)]


def states_error(one: States | None, other: States | None) -> float:
    """Relative difference of two states."""
    assert one and other and one.shape == other.shape and one.model == other.model
    a, b = (np.frombuffer(states.data, "<f4") for states in (one, other))
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def assert_same_scores(scores: Sequence[SegmentScore], others: Sequence[SegmentScore]) -> None:
    assert len(scores) == len(others) > 0
    for one, other in zip(scores, others, strict=True):
        assert states_error(one.states, other.states) < NEAR
        assert one.num_tokens == other.num_tokens
        np.testing.assert_allclose(one.surprisal, other.surprisal, rtol=1e-3, atol=1e-4)


def assert_same_segments(
    ours: TorchEngine,
    context: Context,
    what: GenerationParams,
    mine: Sequence[GeneratedSegment],
    expected: Sequence[GeneratedSegment],
) -> int:
    """Equal up to the first token whose draw is near a boundary. Returns the number of tokens that were compared."""
    tokens, others = (
        [t for one in all_ for t in one.segment.token_ids] for all_ in (mine, expected)
    )
    if tokens != others:
        start = ours.tokenizer.context_ids(context)
        number = next(
            i for i, (a, b) in enumerate(zip([*tokens, -1], [*others, -1], strict=False)) if a != b
        )
        distance = boundary_distance(ours, [*start, *others[:number]], what.sampling)
        assert distance < NEAR, (
            f"token {number} differs, and its draw is {distance:.2g} from a boundary"
        )
        return number
    for one, other in zip(mine, expected, strict=True):
        assert one.segment == other.segment
        if what.want_states:
            assert states_error(one.states, other.states) < NEAR
    return len(tokens)


def boundary_distance(ours: TorchEngine, tokens: list[int], sampling: SamplingParams) -> float:
    """By how much a probability must change for the draw after `tokens` to give another token; greedy: a logit."""
    logits = ours.lm.forward(tokens, ours.lm.new_kv()).logits[-1:]
    if sampling.temperature == 0:
        first, second = logits[0].topk(2).values.tolist()
        return float(first - second)
    weights = filtered(logits, sampling)[0].double()
    to_draw = (
        (weights.cumsum(0) / weights.sum() - uniform(sampling.seed, "token", len(tokens)))
        .abs()
        .min()
    )
    descending = (
        torch.softmax(logits[0].double() / sampling.temperature, -1).sort(descending=True).values
    )
    to_filter = (descending.cumsum(0) - sampling.top_p).abs().min()
    return float(min(to_draw, to_filter))


def segments_of(all_: Sequence[GeneratedSegment]) -> list[Segment]:
    return [one.segment for one in all_]
