"""The self-test of an engine at its start: compares what it generates, scores and recomputes, in a second or two."""

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

TOLERANCE = {True: 1e-5, False: 1e-2}
"""Documented relative error of states in fp32, and in less precision. The test fails beyond ten times as much, and if
the mean log-probability of a segment differs by a hundred times as much."""
REFERENCE_BYTES = 1 << 30
"""Maximum size of weights of which the test loads another copy for plain transformers, in fp32 on the CPU."""
PROMPT = "Tom has 25 pens. He sells 6 and buys 3. How many pens does Tom have now?"
MEAN_LOGPROB, ARGMAX_SHARE = map(SURPRISAL_FEATURES.index, ("mean_log_probability", "argmax_share"))
PARAMS = GenerationParams(
    SamplingParams(0.0), max_segments=0, max_tokens=16, max_segment_tokens=8, want_states=True
)


async def self_test(engine: Engine, settings: "ModelSettings") -> str:
    """Test an engine, and return a line about the result; empty for a datastore or a remote server.

    The test generates 16 tokens greedily, scores them by one call, by two calls and by plain transformers, and reads
    the longest context (on a CPU, 128 tokens).

    Raises: Mismatch with the first difference, or with the reason why the model does not run.
    """
    if getattr(settings, "datastore", None) or getattr(settings, "server", None):
        return ""
    from semspec.device import release_memory  # imports torch, once the model is loaded

    try:
        line = await _compare(engine, settings)
        await asyncio.to_thread(release_memory)
        return line
    except SemspecError:
        raise
    except Exception as error:  # the model's code may need something that our engines lack
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
    generated = [segment async for segment in engine.generate(context, PARAMS)]
    *others, last = (result.segment for result in generated)
    together = await engine.score(context, [*others, last])
    [alone] = await engine.score(before := context.extended(*others), [last])
    num_tokens = min((await engine.info()).max_context_tokens - 1, 128 if is_cpu else 1 << 30)
    ids = (context.pieces[0].token_ids * num_tokens)[: num_tokens - len(last.token_ids)]
    try:
        await engine.score(Context((replace(context.pieces[0], token_ids=ids),)), [last])
    except (Overloaded, RuntimeError) as error:  # PyTorch's error for a lack of memory on a CPU
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
    tolerance, worst, faults = TOLERANCE[is_exact], 0.0, dict[str, bool]()
    for how, score in scores.items():
        a, b = (
            np.frombuffer(states.data, "<f4").reshape(states.shape)
            for states in (generated[-1].states, score.states)
            if states
        )
        state_error = float((np.linalg.norm(a - b, axis=1) / np.linalg.norm(b, axis=1)).max())
        worst = max(worst, state_error)
        faults[f"states scored {how} are not those of generation: error {state_error:.0e}"] = (
            not state_error <= 10 * tolerance
        )
        if is_exact:  # in less precision, another order of sums may change a token
            faults[f"tokens scored {how} are not the most probable"] = (
                score.surprisal[ARGMAX_SHARE] < 1
            )
        difference = abs(score.surprisal[MEAN_LOGPROB] - alone.surprisal[MEAN_LOGPROB])
        faults[f"log-probabilities scored {how} differ by {difference:.0e}"] = (
            not difference <= 100 * tolerance
        )
    if form == "packed":
        errors = await asyncio.to_thread(_layer_errors, engine, settings, prefix)
        compared += f", layers with those in fp32 to {max(errors.values()):.0e}"
        for number, layer_error in errors.items():
            faults[f"layer {number} is not that of the file: error {layer_error:.0e}"] = (
                not layer_error <= 10 * tolerance
            )
    if is_exact:
        params = replace(PARAMS, max_segments=1, max_tokens=len(last.token_ids))
        [again] = [segment async for segment in engine.generate(before, params)]
        faults["two calls generate other tokens than one"] = (
            again.segment.token_ids != last.token_ids
        )
    if found := [fault for fault, is_present in faults.items() if is_present]:
        change = "dtype to float32" if form == "packed" else "the engine to transformers"
        raise Mismatch(
            f"self-test: {found[0]}", remedy=f"report it, and set {change} until it is fixed"
        )
    result = f"states agree to {worst:.0e}, {compared}; {num_tokens} tokens read"
    return f"self-test in {time.perf_counter() - began:.1f} s: {result}"


def _reference(engine: Engine, settings: "ModelSettings") -> tuple["CausalLM", str]:
    """Return the model that plain transformers runs for comparison, and a description for the result.

    It is another copy of a small checkpoint, in fp32 on the CPU, or else the engine's own copy.

    Raises: Mismatch with the reason if there is none.
    """
    from semspec.engine.causal_lm import CausalLM
    from semspec.engine.hub import format_bytes, look_up

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
    raise Mismatch(f"weights of {format_bytes(found.weight_bytes)} in vLLM's processes")


def _layer_errors(engine: Engine, settings: "ModelSettings", tokens: list[int]) -> dict[int, float]:
    """Compare layers of packed weights with transformers' layers in fp32, and return relative errors by layer.

    The reference of `_reference` uses the packed weights, too.
    """
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
