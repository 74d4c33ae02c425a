"""Checks the engine's results on this device against each other and against transformers."""

import asyncio
from collections.abc import Iterator

import torch
from torch import Tensor

from semspec.bench.gpu.models import Model, build, filled, random_context, random_tokens, was_graphed
from semspec.bench.gpu.shapes import Shape
from semspec.engine.transformers_engine import TransformersEngine
from semspec.types import Context, GeneratedSegment, GenerationParams, SamplingParams, States, Writer

SHAPE = Shape("parity", 4, 256, 512, 8, 2, 512)
WINDOW = 512
PROMPT_TOKENS, SEGMENT_TOKENS, GREEDY_TOKENS = 48, 24, 64
BARS = {torch.bfloat16: 1e-2, torch.float32: 1e-5}
"""Maximum relative error, from the states' convention."""
CACHE_BYTES = 1 << 28


def measure_parity(device: torch.device) -> dict[str, object]:
    """Check a small random model in bf16 and fp32; `holds` is whether every row meets its bound."""
    rows: list[dict[str, object]] = []
    for dtype, bar in BARS.items():
        model = build(SHAPE, device, WINDOW, dtype)
        name = str(dtype).removeprefix("torch.")
        for what, error in _errors(model):
            rows.append({"dtype": name, "what": what, "relative_error": error, "bar": bar, "holds": error <= bar})
        if dtype is torch.float32:
            num_equal = _num_equal_greedy(model)
            rows.append(
                {
                    "dtype": name,
                    "what": "greedy tokens, engine and transformers",
                    "num_equal": num_equal,
                    "num_tokens": GREEDY_TOKENS,
                    "holds": num_equal == GREEDY_TOKENS,
                }
            )
    return {"num_layers": SHAPE.num_layers, "holds": all(row["holds"] for row in rows), "rows": rows}


def _errors(model: Model) -> Iterator[tuple[str, float]]:
    context = random_context(PROMPT_TOKENS, model.shape.vocab_size)
    segment, written, cached, recomputed = asyncio.run(_engine_states(model, context))
    yield "states, read and written", _relative(cached, written)
    yield "states, cached and recomputed", _relative(cached, recomputed)
    yield "states, engine and transformers", _relative(cached, _transformers_states(model, context, segment))
    graphed, eager = filled(model, PROMPT_TOKENS, graphed=True), filled(model, PROMPT_TOKENS, graphed=False)
    logits = [model.lm.forward([7], kv).logits for kv in (graphed, eager)]
    if was_graphed(graphed):
        yield "logits, graph and eager", _relative(*logits)


async def _engine_states(model: Model, context: Context) -> tuple[list[int], Tensor, Tensor, Tensor]:
    """A segment, and its pooled states when written, when scored after a cached context, and by a new engine."""
    written = await _write(model, context, SamplingParams(seed=1), SEGMENT_TOKENS)
    old, new = (TransformersEngine(model.lm, Writer.TARGET, CACHE_BYTES) for _ in range(2))
    await old.score(context, [written.segment])
    [cached] = await old.score(context, [written.segment])
    [recomputed] = await new.score(context, [written.segment])
    await old.aclose()
    await new.aclose()
    if written.states is None:
        raise RuntimeError("the engine sent no states")
    states = [_tensor(pooled) for pooled in (written.states, cached.states, recomputed.states)]
    return list(written.segment.token_ids), states[0], states[1], states[2]


async def _write(model: Model, context: Context, sampling: SamplingParams, num_tokens: int) -> GeneratedSegment:
    engine = TransformersEngine(model.lm, Writer.TARGET, CACHE_BYTES)
    params = GenerationParams(sampling, max_tokens=num_tokens, max_segment_tokens=num_tokens, want_states=True)
    [written] = [one async for one in engine.generate(context, params)]
    await engine.aclose()
    return written


@torch.inference_mode()
def _transformers_states(model: Model, context: Context, segment: list[int]) -> Tensor:
    """States pooled by `states-v1` from transformers' outputs; the last layer's are the input of the final norm."""
    caught: list[Tensor] = []
    inner = model.lm.model
    hook = inner.model.norm.register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0]))
    ids = torch.tensor([[*context.pieces[0].token_ids, *segment]], device=model.lm.device)
    hidden = inner(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states
    hook.remove()
    layers = torch.stack([*hidden[:-1], caught[0]])[:, 0, -len(segment) :]
    return layers.float().mean(1).cpu()


def _num_equal_greedy(model: Model) -> int:
    """Number of equal tokens of engine and transformers before the first difference."""
    prompt = random_tokens(PROMPT_TOKENS, model.shape.vocab_size, seed=9)
    context = random_context(PROMPT_TOKENS, model.shape.vocab_size, seed=9)
    own = asyncio.run(_write(model, context, SamplingParams(temperature=0), GREEDY_TOKENS)).segment.token_ids
    ids = torch.tensor([prompt], device=model.lm.device)
    generated = model.lm.model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=GREEDY_TOKENS, pad_token_id=0
    )
    theirs = generated[0, PROMPT_TOKENS:].tolist()
    pairs = zip(own, theirs, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(own), len(theirs)))


def _relative(a: Tensor, b: Tensor) -> float:
    """The largest relative error of any row, by norms, so that layers with small states count equally."""
    a, b = a.float().flatten(1), b.float().flatten(1)
    return float(((a - b).norm(dim=1) / b.norm(dim=1)).max())


def _tensor(states: States) -> Tensor:
    return torch.frombuffer(bytearray(states.data), dtype=torch.float32).view(*states.shape)
