"""Times of a started engine: decoding, prefill, reading after a cached context."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import product
from time import perf_counter
from typing import TypeAlias

from semspec.engine.vllm.engine import VllmEngine
from semspec.types import (
    Context,
    GenerationParams,
    Piece,
    SamplingParams,
    Segment,
    SegmentEnd,
    Writer,
)
from semspec_bench.gpu.engines import checkpoint, start_vllm
from semspec_bench.gpu.record import Facts, Results
from semspec_bench.gpu.shapes import Shape, Sizes
from semspec_bench.gpu.timing import numbers

FIRST_ID = 1100
"""Ids from here on have no text in the bundled tokenizer: segments end by length alone."""
TEMPERATURE = 0.6
SHORT, LONG = 8, 64
"""A token's time is that of an answer of `LONG` tokens less that of one of `SHORT`, over their difference."""
Write: TypeAlias = Callable[[Sequence[int], int, int], Awaitable[int]]
"""Prompt, tokens to write, seed -> tokens written."""


async def measure_shape(
    results: Results,
    shape: Shape,
    sizes: Sizes,
    device: str,
    has_hooks: bool = True,
    num_gpus: int = 1,
) -> None:
    """Measure vLLM with random weights of a shape: as our engine, or alone, which shows the cost of our hooks."""
    options = {
        "gpu_memory_utilization": sizes.memory_share,
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 64,
    }
    options["tensor_parallel_size"] = num_gpus
    with checkpoint(shape, sizes.window) as folder:
        settings = {
            "model": str(folder),
            "max_context_tokens": sizes.window,
            "vllm_options": options,
        }
        async with start_vllm(device, settings, {"load_format": "dummy"}, has_hooks) as (
            llm,
            engine,
        ):
            results.note(shape=shape.name, options=options, start=await llm.facts(has_hooks))
            series = _Series(results, shape, sizes)
            if has_hooks:
                await llm.check(results, engine)
                for states in (True, False):
                    await series.decode({"states": states}, _our_write(engine, states))
                await series.long(_our_write(engine, True))
                await series.reads(engine)
                await llm.compare(results)
            else:
                for temperature in (0.0, TEMPERATURE):
                    await series.decode(
                        {"temperature": temperature}, partial(llm.write, temperature=temperature)
                    )
            results.note(end=await llm.facts(has_hooks))


def _context(engine: VllmEngine, tokens: Sequence[int]) -> Context:
    return Context((Piece("", tuple(tokens), engine.tokenizer.info.tokenizer),))


def _our_write(engine: VllmEngine, want_states: bool) -> Write:
    async def write(tokens: Sequence[int], length: int, seed: int) -> int:
        sampling = SamplingParams(temperature=TEMPERATURE, top_p=0.95, seed=seed)
        params = GenerationParams(
            sampling,
            max_segments=0,
            max_tokens=length,
            max_segment_tokens=length,
            want_states=want_states,
        )
        answer = engine.generate(_context(engine, tokens), params)
        return sum([len(written.segment.token_ids) async for written in answer])

    return write


class _Series:
    def __init__(self, results: Results, shape: Shape, sizes: Sizes) -> None:
        self._results, self._shape, self._sizes = results, shape, sizes

    async def decode(self, kind: Facts, write: Write) -> None:
        """Several streams at once, each after a context of its own."""
        prompts = [
            self._ids(self._sizes.context, index) for index in range(max(self._sizes.streams))
        ]
        for streams in self._sizes.streams:
            await self._decode(kind, write, prompts[:streams])

    async def long(self, write: Write) -> None:
        """One stream after long contexts, and their prefill."""
        for tokens in self._sizes.long_contexts:
            prompts = [self._ids(tokens, f"long {repeat}") for repeat in range(2)]
            ms = numbers([(await _timed(write, [prompt], 1, 0))[0] for prompt in prompts])
            self._results.row("prefill", streams=1, tokens=tokens, context=0, ms=ms)
            await self._decode({"states": True}, write, prompts[:1])

    async def _decode(self, kind: Facts, write: Write, prompts: Sequence[Sequence[int]]) -> None:
        values = []
        for repeat in range(self._sizes.num_repeats + 1):  # the first caches the prompts
            short_ms, short = await _timed(write, prompts, SHORT, repeat)
            long_ms, long = await _timed(write, prompts, LONG, repeat)
            values.append((long_ms - short_ms) / max(1, long - short))
        row = {
            "streams": len(prompts),
            "tokens": 1,
            "context": len(prompts[0]),
            "ms": numbers(values[1:]),
        }
        self._results.row("decode", **kind, **row)

    async def reads(self, engine: VllmEngine) -> None:
        sizes = self._sizes
        cells = product(sizes.streams, sizes.read_contexts, sizes.read_tokens)
        for streams, context, tokens in sorted(
            cells, key=lambda cell: cell[0] * cell[2]
        ):  # the largest steps last
            context_read = _context(engine, self._ids(context, "read"))
            times = [
                await self._read(engine, context_read, streams, tokens, r)
                for r in range(sizes.num_repeats + 1)
            ]
            row = {
                "streams": streams,
                "tokens": tokens,
                "context": context,
                "ms": numbers(times[1:]),
            }
            self._results.row("read", **row)

    async def _read(
        self, engine: VllmEngine, context: Context, streams: int, tokens: int, repeat: int
    ) -> float:
        """Return the milliseconds of scoring one segment per stream concurrently, each of different tokens."""
        tokenizer = engine.tokenizer.info.tokenizer
        drawn = [tuple(self._ids(tokens, f"{repeat} {index}")) for index in range(streams)]
        segments = [Segment("", ids, tokenizer, Writer.DRAFT, SegmentEnd.LENGTH) for ids in drawn]
        start = perf_counter()
        await asyncio.gather(*(engine.score(context, [segment]) for segment in segments))
        return (perf_counter() - start) * 1e3

    def _ids(self, number: int, key: object) -> list[int]:
        drawn = random.Random(f"{number} {key}")
        return [drawn.randrange(FIRST_ID, self._shape.vocab_size - 1) for _ in range(number)]


async def _timed(
    write: Write, prompts: Sequence[Sequence[int]], length: int, seed: int
) -> tuple[float, int]:
    """Return milliseconds, and the tokens of the longest answer, because one may end by chance."""
    start = perf_counter()
    written = await asyncio.gather(*(write(prompt, length, seed) for prompt in prompts))
    return (perf_counter() - start) * 1e3, max(written)
