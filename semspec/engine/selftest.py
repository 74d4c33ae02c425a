"""The self-test of an engine at its start: what it writes, scores and computes again agrees, in a second or two."""

import time
from dataclasses import replace

import numpy as np

from semspec.engine.protocol import Engine
from semspec.errors import Mismatch
from semspec.types import SURPRISAL_FEATURES, Context, GenerationParams, SamplingParams

STATED = {True: 1e-5, False: 1e-2}
"""Relative error of states in fp32, and in less; the start fails beyond ten times as much."""
PROMPT = "Tom has 25 pens. He sells 6 and buys 3. How many pens does Tom have now?"
ARGMAX_SHARE = SURPRISAL_FEATURES.index("argmax_share")
PARAMS = GenerationParams(SamplingParams(0.0), max_segments=0, max_tokens=32, max_segment_tokens=16, want_states=True)


async def self_test(engine: Engine, device: str, dtype: str) -> str:
    """Write 32 tokens greedily, score them by one call and by two, and read the longest context, on a CPU 512 tokens of
    it. Returns a line of result. Raises: Mismatch with the first that does not agree."""
    from semspec.engine.device import device_of  # imports torch, once the model is loaded

    began, is_cpu = time.perf_counter(), device_of(device, "the model") == "cpu"
    context = Context((await engine.encode(PROMPT),))
    written = [one async for one in engine.generate(context, PARAMS)]
    *others, last = (one.segment for one in written)
    together = await engine.score(context, [*others, last])
    [alone] = await engine.score(before := context.extended(*others), [last])
    num_tokens = min((await engine.info()).max_context_tokens, 512 if is_cpu else 1 << 30)
    ids = (context.pieces[0].token_ids * num_tokens)[: num_tokens - len(last.token_ids)]
    await engine.score(Context((replace(context.pieces[0], token_ids=ids),)), [last])
    is_exact, worst, faults = dtype == "float32" or (dtype == "auto" and is_cpu), 0.0, dict[str, bool]()
    for how, score in {"by one call": together[-1], "by two calls": alone}.items():
        a, b = (np.frombuffer(one.data, "<f4").reshape(one.shape) for one in (written[-1].states, score.states) if one)
        worst = max(worst, error := float((np.linalg.norm(a - b, axis=1) / np.linalg.norm(b, axis=1)).max()))
        faults[f"states scored {how} are not those written: error {error:.0e}"] = not error <= 10 * STATED[is_exact]
        if is_exact:  # in less precision another order of sums may change a token
            faults[f"tokens scored {how} are not the likeliest"] = score.surprisal[ARGMAX_SHARE] < 1
    if is_exact:
        params = replace(PARAMS, max_segments=1, max_tokens=len(last.token_ids))
        [again] = [one async for one in engine.generate(before, params)]
        faults["two calls write other tokens than one"] = again.segment.token_ids != last.token_ids
    if found := [fault for fault, is_there in faults.items() if is_there]:
        raise Mismatch(f"self-test: {found[0]}; report it, and set the engine to transformers until then")
    return f"self-test in {time.perf_counter() - began:.1f} s: states agree to {worst:.0e}, {num_tokens} tokens read"
