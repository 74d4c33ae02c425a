"""Measures the bundled models' costs with one thread: decoding a token, scoring a segment, and the machine's limits.

python -m semspec.bench.cost            writes bench/results/cost.json
"""

import argparse
import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from semspec.bench.report.speed_of_light import measure_machine, weights_of
from semspec.demo.problems import SPLITS, make_problem
from semspec.engine.protocol import Engine
from semspec.engine.transformers_engine import TransformersEngine
from semspec.stack import BUNDLED_PAIR
from semspec.training.files import write_json
from semspec.types import Context, GenerationParams, Message, SamplingParams, Segment, SegmentEnd, Writer

NUM_ROUNDS = 15
NUM_TOKENS = 100
READ_TOKENS = (16, 24, 32, 64)


async def main() -> None:
    machine = measure_machine()
    medians = await _medians()
    facts: dict[str, Any] = {
        "num_rounds": NUM_ROUNDS,
        "medians": medians,
        "machine": asdict(machine),
        "weights": {writer: asdict(weights_of(BUNDLED_PAIR / writer)) for writer in (Writer.DRAFT, Writer.TARGET)},
    }
    write_json(Path(__file__).parent / "results" / "cost.json", facts)
    print(json.dumps(facts, indent=2))


async def _medians() -> dict[str, float]:
    writers = (Writer.DRAFT, Writer.TARGET)
    engines: dict[Writer, Engine] = {
        writer: TransformersEngine.load(str(BUNDLED_PAIR / writer), writer=writer) for writer in writers
    }
    rounds = [await _round(engines, SPLITS["tune"][number]) for number in range(NUM_ROUNDS + 1)][1:]  # one to warm up
    for engine in engines.values():
        await engine.aclose()
    medians = {name: round(median(times[name] for times in rounds), 3) for name in rounds[0]}
    return medians | {
        "decode_ratio": round(medians["target_decode_ms_per_token"] / medians["draft_decode_ms_per_token"], 2)
    }


async def _round(engines: dict[Writer, Engine], seed: int) -> dict[str, float]:
    """All measurements once, alternating between the models, in milliseconds."""
    times = {}
    for writer, engine in engines.items():
        context = Context((await engine.encode([Message("user", make_problem(seed).question)]),))
        times[f"{writer}_decode_ms_per_token"] = await _decode(engine, context, want_states=writer == Writer.DRAFT)
        for num_tokens in READ_TOKENS:
            times[f"{writer}_read_{num_tokens}_ms"] = await _read(engine, context, num_tokens)
    return times


async def _decode(engine: Engine, context: Context, want_states: bool) -> float:
    """Milliseconds per token, over NUM_TOKENS tokens."""
    left, start = NUM_TOKENS, perf_counter()
    while left > 0:
        sampling = SamplingParams(0.6, 0.95, 0, seed=left)
        params = GenerationParams(sampling, max_segments=0, max_tokens=left, want_states=want_states, session="cost")
        async for written in engine.generate(context, params):
            left -= len(written.segment.token_ids)
    return (perf_counter() - start) * 1e3 / NUM_TOKENS


async def _read(engine: Engine, context: Context, num_tokens: int) -> float:
    """Milliseconds to score `num_tokens` tokens after the cached context."""
    [prompt] = context.pieces
    segment = Segment("", prompt.token_ids[:num_tokens], prompt.tokenizer, Writer.DRAFT, SegmentEnd.BOUNDARY)
    await engine.score(context, [segment], "cost")
    start = perf_counter()
    await engine.score(context, [segment], "cost")
    return (perf_counter() - start) * 1e3


if __name__ == "__main__":
    argparse.ArgumentParser("python -m semspec.bench.cost", description=__doc__).parse_args()
    asyncio.run(main())
