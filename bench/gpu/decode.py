"""One token at a time: every way the project has of decoding, beside its floor."""

import asyncio
from collections.abc import Iterator

import torch

from bench.gpu.light import Light
from bench.gpu.models import Model, Pair, filled, random_context, random_tokens, was_graphed
from bench.gpu.shapes import Scale
from bench.gpu.timing import Sample, Timer, Work
from semspec.engine.kv_cache import KV, DynamicKV
from semspec.engine.transformers_engine import TransformersEngine
from semspec.types import GenerationParams, SamplingParams, Writer

SAMPLING = SamplingParams(temperature=0.6, top_p=0.95, seed=1)
NUM_WRITES = 8


def measure_decode(timer: Timer, scale: Scale, pair: Pair, light: Light, limit_s: float) -> dict[str, object]:
    """Both models in turns; `engine` also draws the token, sums the states and looks for the segment's end."""
    context = scale.contexts[0]
    works: dict[str, Work] = {}
    graphs = {}
    for role, model in (("draft", pair.draft), ("target", pair.target)):
        for way, work in _steps(model, context):
            works[f"{role} {way}"] = work
        graphs[role] = _is_graphed(model, context)
    samples = timer.interleaved(works, scale.num_steps, limit_s / 2)
    for role, model in (("draft", pair.draft), ("target", pair.target)):
        samples[f"{role} engine"] = _engine_sample(timer, scale, model, Writer(role), limit_s / 4)
    facts: dict[str, object] = {"context": context, "graphed": graphs}
    for role, model in (("draft", pair.draft), ("target", pair.target)):
        floor_ms = light.decode_ms(model.shape, context)
        ways = {name.split()[1]: _row(sample, floor_ms) for name, sample in samples.items() if name.startswith(role)}
        facts[role] = {"floor_ms": floor_ms, "floor_tokens_per_s": 1e3 / floor_ms, "ways": ways}
    return facts


def _row(sample: Sample, floor_ms: float) -> dict[str, float]:
    return sample.as_json() | {
        "tokens_per_s": 1e3 / sample.median_ms,
        "share_of_floor": floor_ms / sample.median_ms,
    }


def _steps(model: Model, context: int) -> Iterator[tuple[str, Work]]:
    """A forward of one token with all layers' states: by transformers, by our decoder, by its CUDA graph."""
    token = model.shape.vocab_size // 2
    yield "transformers", _transformers_step(model, context, token)
    yield "eager", _step(model, filled(model, context, graphed=False), context, token)
    if _is_graphed(model, context):
        yield "graph", _step(model, filled(model, context, graphed=True), context, token)


def _step(model: Model, kv: KV, context: int, token: int) -> Work:
    def step() -> None:
        model.lm.forward([token], kv, want_states=True)
        kv.crop(context)

    return step


def _transformers_step(model: Model, context: int, token: int) -> Work:
    kv = DynamicKV()
    device = model.lm.device
    model.lm.forward_batch(torch.tensor([random_tokens(context, model.shape.vocab_size)], device=device), kv.cache)

    def step() -> None:
        model.lm.forward_batch(torch.tensor([[token]], device=device), kv.cache, want_states=True)
        kv.crop(context)

    return step


def _is_graphed(model: Model, context: int) -> bool:
    """Whether a CUDA graph serves this model: none does on a CPU, nor after its capture failed."""
    kv = filled(model, context, graphed=True)
    model.lm.forward([0], kv)
    return was_graphed(kv)


def _engine_sample(timer: Timer, scale: Scale, model: Model, writer: Writer, limit_s: float) -> Sample:
    """A token of a segment written by the engine."""
    prompt = random_context(scale.contexts[0], model.shape.vocab_size)
    params = GenerationParams(
        SAMPLING,
        max_tokens=scale.written_tokens,
        max_segment_tokens=scale.written_tokens,
        want_states=writer is Writer.DRAFT,
        session="decode",
    )
    engine = TransformersEngine(model.lm, writer, cache_bytes=8 << 30)

    async def write() -> None:
        async for written in engine.generate(prompt, params):
            if len(written.segment.token_ids) != scale.written_tokens:
                raise RuntimeError(f"a segment ended early, after {len(written.segment.token_ids)} tokens")

    with asyncio.Runner() as runner:
        sample = timer.interleaved({"write": lambda: runner.run(write())}, NUM_WRITES, limit_s)["write"]
        runner.run(engine.aclose())
    return sample.over(scale.written_tokens)
