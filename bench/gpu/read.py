"""Reading a segment: by its length, by what is before it, and by which states are wanted."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from bench.gpu.light import Light
from bench.gpu.models import Model, filled, random_tokens
from bench.gpu.record import Facts
from bench.gpu.shapes import Scale
from bench.gpu.timing import Sample, Timer, Work
from semspec.engine.kv_cache import KV
from semspec.engine.logits import surprisal

KINDS = ("none", "last", "all")
"""Layers whose states are pooled and brought to the host."""


def measure_reads(timer: Timer, scale: Scale, target: Model, light: Light, limit_s: float) -> Facts:
    """A read as the engine does it: one forward with logits of all rows, the surprisal of the segment, pooled states
    to the host. The last layer's states come with any forward; their stand-in here is a tensor of that size."""
    contexts = [
        _after(timer, scale, target, light, context, limit_s / len(scale.contexts)) for context in scale.contexts
    ]
    return {"kinds": list(KINDS), "contexts": contexts}


def _after(timer: Timer, scale: Scale, target: Model, light: Light, context: int, limit_s: float) -> Facts:
    """Reads behind a context of so many tokens, and the prefill of that context in one forward."""
    prefill = {"prefill": lambda: filled(target, context, graphed=True)}
    prefill_sample = timer.interleaved(prefill, scale.num_prefills, limit_s / 4)["prefill"]
    prefill_floor_ms = light.forward_ms(target.shape, context, 0, 1)
    kv = filled(target, context, graphed=True)
    works: dict[str, Work] = {"step": partial(_step, target, kv, context)}
    for num_tokens in scale.read_tokens:
        works |= {f"{num_tokens} {kind}": work for kind, work in _reads(target, kv, context, num_tokens)}
    samples = timer.interleaved(works, scale.num_reads, limit_s * 3 / 4)
    rows = []
    for num_tokens in scale.read_tokens:
        floor_ms = light.forward_ms(target.shape, num_tokens, context, num_tokens)
        by_kind = {kind: samples[f"{num_tokens} {kind}"] for kind in KINDS}
        rows.append({"num_tokens": num_tokens} | _row(by_kind, floor_ms, samples["step"].median_ms))
    return {
        "context": context,
        "step": samples["step"].as_json(),
        "prefill": prefill_sample.as_json()
        | {"floor_ms": prefill_floor_ms, "share_of_floor": prefill_floor_ms / prefill_sample.median_ms},
        "reads": rows,
    }


def _row(by_kind: dict[str, Sample], floor_ms: float, step_ms: float) -> Facts:
    none_ms = by_kind["none"].median_ms
    return {
        "floor_ms": floor_ms,
        "share_of_floor": floor_ms / by_kind["all"].median_ms,
        "samples": {kind: sample.as_json() for kind, sample in by_kind.items()},
        "decode_steps": {kind: sample.median_ms / step_ms for kind, sample in by_kind.items()},
        "cost_of_states": {kind: by_kind[kind].median_ms / none_ms - 1 for kind in ("last", "all")},
    }


def _step(model: Model, kv: KV, context: int) -> None:
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
