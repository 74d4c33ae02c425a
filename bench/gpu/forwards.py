"""Single forward passes: decoding a token in every implementation, and scoring a segment, each with its lower bound."""

import asyncio
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from semspec.bench.gpu.models import Model, Pair, filled, random_context, random_tokens, was_graphed
from semspec.bench.gpu.record import Facts
from semspec.bench.gpu.shapes import Scale
from semspec.bench.gpu.timing import Light, Sample, Timer, Work
from semspec.engine.kv_cache import KV, DynamicKV
from semspec.engine.logits import surprisal
from semspec.engine.transformers_engine import TransformersEngine
from semspec.types import GenerationParams, SamplingParams, Writer

SAMPLING = SamplingParams(temperature=0.6, top_p=0.95, seed=1)
NUM_WRITES = 8
KINDS = ("none", "last", "all")
"""Layers whose states are pooled and copied to the host."""


def measure_decode(timer: Timer, scale: Scale, pair: Pair, light: Light, limit_s: float) -> dict[str, object]:
    """Time both models, interleaved; `engine` also samples the token, sums the states and detects the segment's end."""
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
    """Forward passes of one token with all layers' states: by transformers, by the fast decoder, by its CUDA graph."""
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
    """Whether this model runs by a CUDA graph; it does not on a CPU or after a failed capture."""
    kv = filled(model, context, graphed=True)
    model.lm.forward([0], kv)
    return was_graphed(kv)


def _engine_sample(timer: Timer, scale: Scale, model: Model, writer: Writer, limit_s: float) -> Sample:
    """Time per token of a segment written by the engine."""
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


def measure_reads(timer: Timer, scale: Scale, target: Model, light: Light, limit_s: float) -> Facts:
    """Time scoring as the engine does it: one forward with logits of all rows, the segment's surprisal, and a copy of
    the pooled states to the host. Every forward computes the last layer's states; a tensor of that size replaces them.
    """
    contexts = [
        _after(timer, scale, target, light, context, limit_s / len(scale.contexts)) for context in scale.contexts
    ]
    return {"kinds": list(KINDS), "contexts": contexts}


def _after(timer: Timer, scale: Scale, target: Model, light: Light, context: int, limit_s: float) -> Facts:
    """Time scoring after a context of so many tokens, and the prefill of that context in one forward."""
    prefill = {"prefill": lambda: filled(target, context, graphed=True)}
    prefill_sample = timer.interleaved(prefill, scale.num_prefills, limit_s / 4)["prefill"]
    prefill_floor_ms = light.forward_ms(target.shape, context, 0, 1)
    kv = filled(target, context, graphed=True)
    works: dict[str, Work] = {"step": partial(_plain_step, target, kv, context)}
    for num_tokens in scale.read_tokens:
        works |= {f"{num_tokens} {kind}": work for kind, work in _reads(target, kv, context, num_tokens)}
    samples = timer.interleaved(works, scale.num_reads, limit_s * 3 / 4)
    rows = []
    for num_tokens in scale.read_tokens:
        floor_ms = light.forward_ms(target.shape, num_tokens, context, num_tokens)
        by_kind = {kind: samples[f"{num_tokens} {kind}"] for kind in KINDS}
        rows.append({"num_tokens": num_tokens} | _read_row(by_kind, floor_ms, samples["step"].median_ms))
    return {
        "context": context,
        "step": samples["step"].as_json(),
        "prefill": prefill_sample.as_json()
        | {"floor_ms": prefill_floor_ms, "share_of_floor": prefill_floor_ms / prefill_sample.median_ms},
        "reads": rows,
    }


def _read_row(by_kind: dict[str, Sample], floor_ms: float, step_ms: float) -> Facts:
    none_ms = by_kind["none"].median_ms
    return {
        "floor_ms": floor_ms,
        "share_of_floor": floor_ms / by_kind["all"].median_ms,
        "samples": {kind: sample.as_json() for kind, sample in by_kind.items()},
        "decode_steps": {kind: sample.median_ms / step_ms for kind, sample in by_kind.items()},
        "cost_of_states": {kind: by_kind[kind].median_ms / none_ms - 1 for kind in ("last", "all")},
    }


def _plain_step(model: Model, kv: KV, context: int) -> None:
    model.lm.forward([1], kv)
    kv.crop(context)


def _reads(target: Model, kv: KV, context: int, num_tokens: int) -> Iterator[tuple[str, Work]]:
    tokens = random_tokens(num_tokens, target.shape.vocab_size, seed=2)
    last = torch.zeros(1, num_tokens, target.shape.hidden_size, device=target.lm.device, dtype=target.lm.model.dtype)
    for kind in KINDS:
        yield kind, partial(_read, target, kv, context, tokens, kind, last)


def _read(target: Model, kv: KV, context: int, tokens: list[int], kind: str, last: Tensor) -> None:
    forward = target.lm.forward(tokens, kv, num_rows=len(tokens), want_states=kind == "all")
    kv.crop(context)
    surprisal(forward.logits, torch.tensor(tokens, device=forward.logits.device)).tolist()
    if kind != "none":
        (forward.states if kind == "all" else last).float().mean(1).cpu()
