"""Compares the engine over vLLM in fp32 with ours on the CPU, on the bundled pair's target: tokens, states, scores."""

import asyncio
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from semspec.engine.local import LocalEngine
from semspec.engine.torch_engine import TorchEngine
from semspec.types import (
    Context,
    GeneratedSegment,
    GenerationParams,
    Message,
    SamplingParams,
    States,
    Writer,
    derive_seed,
)
from semspec_bench.gpu.engines import TARGET, start_vllm
from semspec_bench.gpu.record import Facts, Results
from semspec_demo.problems import SPLITS, make_problem

STATES_BAR, SURPRISAL_BAR, TOKENS_BAR = 1e-5, 1e-4, 0.9
"""Largest relative error of states and absolute one of surprisals; least share of written tokens before a difference,
since a draw within rounding of a boundary may fall on either side."""
NUM_PROPOSED = 6


async def measure_parity(results: Results, num_problems: int, device: str) -> None:
    extra = {"attention_backend": "TRITON_ATTN"} if device == "cuda" else {}
    # Otherwise Triton's attention multiplies fp32 in TF32.
    os.environ["TRITON_F32_DEFAULT"] = "ieee"
    options = {"gpu_memory_utilization": 0.4, "max_num_seqs": 16}
    settings = {"model": str(TARGET), "dtype": "float32", "vllm_options": options}
    async with start_vllm(device, settings, extra) as (llm, engine):
        results.note(start=await llm.facts())
        await llm.check(results, engine)
        reference = TorchEngine.load(
            str(TARGET), writer=Writer.TARGET, device="cpu", dtype="float32"
        )
        comparison = _Comparison(results, (engine, reference))
        asked = [
            [Message("user", make_problem(seed).question)]
            for seed in SPLITS["report"][:num_problems]
        ]
        contexts = [Context((await reference.encode(messages),)) for messages in asked]
        await comparison.written("greedy", contexts, 0.0)
        answers = await comparison.written("sampled", contexts, 0.6)
        await llm.llm.reset_prefix_cache()
        for kind in ("recomputed", "cached"):
            await comparison.scored(kind, contexts, answers)
        await comparison.verified("greedy", contexts, 0.0)
        await comparison.verified("sampled", contexts, 0.9)
        await reference.aclose()


class _Comparison:
    """Compares vLLM with the reference, in this order; the methods return the answers of the reference."""

    def __init__(self, results: Results, engines: tuple[LocalEngine, LocalEngine]) -> None:
        self._results, self._engines = results, engines

    async def written(
        self, kind: str, contexts: Sequence[Context], temperature: float
    ) -> list[list[GeneratedSegment]]:
        params = [_params(seed, temperature) for seed in range(len(contexts))]
        found, expected = [
            await asyncio.gather(
                *(_written(engine, *call) for call in zip(contexts, params, strict=True))
            )
            for engine in self._engines
        ]
        answers = list(zip(found, expected, strict=True))
        tokens = [(_ids(actual), _ids(reference)) for actual, reference in answers]
        num_tokens, num_same = (
            sum(len(reference) for _, reference in tokens),
            sum(_num_same(*pair) for pair in tokens),
        )
        pairs = [pair for answer in answers for pair in zip(*answer, strict=False)]
        states = _worst(
            _error(a.states, b.states)
            for a, b in pairs
            if a.segment.token_ids == b.segment.token_ids
        )
        holds = num_same >= TOKENS_BAR * num_tokens and states["max"] < STATES_BAR
        num_equal = sum(actual == reference for actual, reference in tokens)
        counts = {
            "num_answers": len(answers),
            "num_equal": num_equal,
            "num_tokens": num_tokens,
            "num_same": num_same,
        }
        self._results.row(f"written, {kind}", **counts, states=states, holds=holds)
        return expected

    async def scored(
        self, kind: str, contexts: Sequence[Context], answers: Sequence[Sequence[GeneratedSegment]]
    ) -> None:
        segments = [[written.segment for written in answer] for answer in answers]
        found, expected = [
            await asyncio.gather(*map(engine.score, contexts, segments)) for engine in self._engines
        ]
        pairs = [
            pair for both in zip(found, expected, strict=True) for pair in zip(*both, strict=True)
        ]
        states = _worst(_error(a.states, b.states) for a, b in pairs)
        surprisal = _worst(
            abs(x - y) for a, b in pairs for x, y in zip(a.surprisal, b.surprisal, strict=True)
        )
        num_cached = sum(scores[0].num_cached_tokens or 0 for scores in found)
        holds = states["max"] < STATES_BAR and surprisal["max"] < SURPRISAL_BAR
        errors = {"states": states, "surprisal": surprisal}
        self._results.row(f"scored, {kind}", num_cached_tokens=num_cached, **errors, holds=holds)

    async def verified(self, kind: str, contexts: Sequence[Context], temperature: float) -> None:
        """Proposals are drawn warmer than they are verified, so that some tokens are rejected when they are sampled."""
        drafting = [
            _params(derive_seed(seed, "draft", 0), 1.3 * temperature)
            for seed in range(len(contexts))
        ]
        counts = {"num_proposals_equal": 0, "num_verified_equal": 0, "num_accepted": 0}
        for seed, (context, draft) in enumerate(zip(contexts, drafting, strict=True)):
            found, proposal = [
                await engine.propose(context, (), draft, NUM_PROPOSED) for engine in self._engines
            ]
            verified = [
                await engine.verify_tokens(context, (), proposal, _params(seed, temperature))
                for engine in self._engines
            ]
            counts["num_proposals_equal"] += found.token_ids == proposal.token_ids
            counts["num_verified_equal"] += replace(verified[0], duration_ms=0) == replace(
                verified[1], duration_ms=0
            )
            counts["num_accepted"] += verified[1].num_accepted
        holds = counts["num_proposals_equal"] == counts["num_verified_equal"] == len(contexts)
        self._results.row(
            f"proposed and verified, {kind}", num_answers=len(contexts), **counts, holds=holds
        )


def _params(seed: int, temperature: float) -> GenerationParams:
    sampling = SamplingParams(temperature, 0.95, 0, seed)
    return GenerationParams(
        sampling, max_segments=0, max_tokens=80, max_segment_tokens=40, want_states=True
    )


async def _written(
    engine: LocalEngine, context: Context, params: GenerationParams
) -> list[GeneratedSegment]:
    return [generated async for generated in engine.generate(context, params)]


def _ids(answer: Iterable[GeneratedSegment]) -> list[int]:
    return [token for generated in answer for token in generated.segment.token_ids]


def _num_same(actual: list[int], reference: list[int]) -> int:
    """Return the number of tokens before the first difference."""
    return next(
        (i for i, (a, b) in enumerate(zip(actual, reference, strict=False)) if a != b),
        min(len(actual), len(reference)),
    )


def _error(actual: States | None, reference: States | None) -> float:
    """Relative, by norms."""
    if actual is None or reference is None:
        raise RuntimeError("an engine sent no states")
    a, b = (np.frombuffer(states.data, "<f4").astype("f8") for states in (actual, reference))
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def _worst(errors: Iterable[float]) -> Facts:
    found = [*errors]
    return {
        "max": float(f"{max(found):.3g}"),
        "median": float(f"{np.median(found):.3g}"),
        "n": len(found),
    }
