"""The self-test of an engine at its start: what it writes, scores and computes again agrees, in a second or two."""

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from semspec.errors import Mismatch, Overloaded, SemspecError
from semspec.protocols import Engine
from semspec.types import (
    SURPRISAL_FEATURES,
    Context,
    GenerationParams,
    SamplingParams,
    SegmentScore,
    States,
)

if TYPE_CHECKING:
    from semspec.engine.causal_lm import CausalLM
    from semspec.engine.settings import ModelSettings

STATED = {True: 1e-5, False: 1e-2}
"""Relative error of states in fp32, and in less; the start fails beyond ten times as much, and where a segment's mean
log-probability differs by a hundred times as much."""
REFERENCE_BYTES = 1 << 30
"""Weights up to which plain transformers runs another copy of the checkpoint, in fp32 on the CPU."""
PROMPT = "Tom has 25 pens. He sells 6 and buys 3. How many pens does Tom have now?"
MEAN_LOGPROB, ARGMAX_SHARE = map(SURPRISAL_FEATURES.index, ("mean_log_probability", "argmax_share"))
PARAMS = GenerationParams(
    SamplingParams(0.0), max_segments=0, max_tokens=16, max_segment_tokens=8, want_states=True
)


async def self_test(engine: Engine, settings: "ModelSettings") -> str:
    """Write 16 tokens greedily, score them by one call, by two and by plain transformers, and read the longest context,
    on a CPU 128 tokens of it. Returns a line of result, nothing of a datastore or a server that writes.
    Raises: Mismatch with the first that does not agree, or with the reason why the model does not run."""
    if getattr(settings, "datastore", None) or getattr(settings, "server", None):
        return ""
    from semspec.device import release_memory  # imports torch, once the model is loaded

    try:
        line = await _compare(engine, settings)
        await asyncio.to_thread(release_memory)
        return line
    except SemspecError:
        raise
    except (
        Exception
    ) as error:  # of the model's code, which may need what no engine of ours gives it
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        remedy = "give another checkpoint, or set another engine"
        raise Mismatch(f"self-test: the model does not run: {reason}", remedy=remedy) from error


async def _compare(engine: Engine, settings: "ModelSettings") -> str:
    """Compare the engine with itself and with plain transformers, and return the line of result.

    Raises: Mismatch with the first difference; what the engine raises.
    """
    from semspec.device import device_of  # imports torch, once the model is loaded

    began, is_cpu = time.perf_counter(), device_of(settings.device, "the model") == "cpu"
    context = Context((await engine.encode(PROMPT),))
    written = [one async for one in engine.generate(context, PARAMS)]
    *others, last = (one.segment for one in written)
    together = await engine.score(context, [*others, last])
    [alone] = await engine.score(before := context.extended(*others), [last])
    num_tokens = min((await engine.info()).max_context_tokens - 1, 128 if is_cpu else 1 << 30)
    ids = (context.pieces[0].token_ids * num_tokens)[: num_tokens - len(last.token_ids)]
    try:
        await engine.score(Context((replace(context.pieces[0], token_ids=ids),)), [last])
    except (
        Overloaded,
        RuntimeError,
    ) as error:  # of PyTorch, which names a lack of memory in words alone on a CPU
        remedy = "lower max_context_tokens, or free memory"
        raise Mismatch(
            f"self-test: a context of {num_tokens} tokens cannot be read: {error}", remedy=remedy
        ) from error
    prefix = [token for piece in before.pieces for token in piece.token_ids]
    scores = {"by one call": together[-1], "by two calls": alone}
    try:
        lm, compared = await asyncio.to_thread(_reference, engine, settings)
    except Mismatch as error:
        compared = f"not with plain transformers: {error}"
    else:
        scores["by plain transformers"] = await asyncio.to_thread(
            _plain_score, lm, prefix, list(last.token_ids)
        )
    form = getattr(getattr(engine, "lm", None), "form", "float32" if is_cpu else "bfloat16")
    is_exact = (form if settings.dtype == "auto" else settings.dtype) == "float32"
    stated, worst, faults = STATED[is_exact], 0.0, dict[str, bool]()
    for how, score in scores.items():
        a, b = (
            np.frombuffer(one.data, "<f4").reshape(one.shape)
            for one in (written[-1].states, score.states)
            if one
        )
        off = float((np.linalg.norm(a - b, axis=1) / np.linalg.norm(b, axis=1)).max())
        worst = max(worst, off)
        faults[f"states scored {how} are not those written: error {off:.0e}"] = (
            not off <= 10 * stated
        )
        if is_exact:  # in less precision another order of sums may change a token
            faults[f"tokens scored {how} are not the likeliest"] = score.surprisal[ARGMAX_SHARE] < 1
        difference = abs(score.surprisal[MEAN_LOGPROB] - alone.surprisal[MEAN_LOGPROB])
        faults[f"log-probabilities scored {how} differ by {difference:.0e}"] = (
            not difference <= 100 * stated
        )
    if form == "packed":
        errors = await asyncio.to_thread(_layer_errors, engine, settings, prefix)
        compared += f", layers with those in fp32 to {max(errors.values()):.0e}"
        for number, off in errors.items():
            faults[f"layer {number} is not that of the file: error {off:.0e}"] = (
                not off <= 10 * stated
            )
    if is_exact:
        params = replace(PARAMS, max_segments=1, max_tokens=len(last.token_ids))
        [again] = [one async for one in engine.generate(before, params)]
        faults["two calls write other tokens than one"] = again.segment.token_ids != last.token_ids
    if found := [fault for fault, is_there in faults.items() if is_there]:
        raise Mismatch(
            f"self-test: {found[0]}",
            remedy="report it, and until then set "
            + ("dtype to float32" if form == "packed" else "the engine to transformers"),
        )
    words = f"states agree to {worst:.0e}, {compared}; {num_tokens} tokens read"
    return f"self-test in {time.perf_counter() - began:.1f} s: {words}"


def _reference(engine: Engine, settings: "ModelSettings") -> tuple["CausalLM", str]:
    """Return the model that plain transformers runs to compare with, and words for the result.

    Of a small checkpoint it is another copy, in fp32 on the CPU, else the copy that the engine holds.

    Raises: Mismatch with the reason when there is none.
    """
    from semspec.engine.causal_lm import CausalLM
    from semspec.engine.hub import look_up, size_of

    found, options = look_up(settings.model, settings.revision), settings.vllm_options
    config = (found.folder / "config.json").read_text()
    if options.quantization or options.kv_cache_dtype or "quantization_config" in config:
        raise Mismatch("quantised")
    held = getattr(engine, "lm", None)
    is_packed = isinstance(held, CausalLM) and held.form == "packed"
    if found.weight_bytes <= REFERENCE_BYTES and not is_packed:
        lm = CausalLM.load(
            settings.model, settings.revision, "cpu", "float32", engine="transformers"
        )
        return lm, "with plain transformers too"
    if isinstance(held, CausalLM):
        return held, "with plain transformers over the same weights too"
    raise Mismatch(f"weights of {size_of(found.weight_bytes)} in vLLM's processes")


def _layer_errors(engine: Engine, settings: "ModelSettings", tokens: list[int]) -> dict[int, float]:
    """Compare what layers of packed weights add to states with transformers' layers in fp32; plain transformers above
    uses the packed ones. Returns the relative errors by the layer's number."""
    import torch

    from semspec.engine.causal_lm import CausalLM
    from semspec.engine.gguf import weights_file
    from semspec.engine.gguf_model import float_layers
    from semspec.engine.hub import look_up

    file = weights_file(str(look_up(settings.model, settings.revision).folder))
    lm = getattr(engine, "lm", None)
    assert file is not None and isinstance(lm, CausalLM), "packed weights are those of a file"
    states = lm.forward(tokens, lm.new_kv(), want_states=True).states
    positions = torch.arange(len(tokens))[None]
    rotations = lm.model.model.rotary_emb(states, positions)
    errors = {}
    with torch.inference_mode():
        for number, layer in float_layers(file, lm.model.config):
            before, after = states[number : number + 2]
            exact = layer(before[None], position_embeddings=rotations, position_ids=positions)[0]
            errors[number] = float((after - exact).norm() / (exact - before).norm())
    return errors


def _plain_score(lm: "CausalLM", prefix: list[int], segment: list[int]) -> SegmentScore:
    """Score `segment`, token ids after `prefix`, by one forward pass of transformers without a cache."""
    import torch
    from transformers import DynamicCache

    from semspec.engine.logits import segment_scores, token_statistics

    ids, num_tokens = torch.tensor([[*prefix, *segment]], device=lm.device), len(segment)
    forward = lm.forward_batch(ids, DynamicCache(), num_tokens + 1, want_states=True)
    pooled = forward.states[:, 0, -num_tokens:].float().mean(1).cpu().numpy()
    states = States(pooled.tobytes(), pooled.shape, lm.info.fingerprint)
    [score] = segment_scores(
        [token_statistics(forward.logits[0, :-1], ids[0, -num_tokens:])], [states]
    )
    return score
