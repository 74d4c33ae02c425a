"""From what a forward yields to what is sent of it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from semspec.engine.surprisal import surprisal
from semspec.types import SegmentScore, States


def states_of(pooled: Tensor, model: str) -> States:
    """Pooled states, fp32 `[num_layers + 1, hidden_size]`, of the model with the fingerprint `model`."""
    array = pooled.cpu().numpy()
    return States(array.astype("<f4", copy=False).tobytes(), array.shape, model)


def readings_of(read: Sequence[list[int]], logits: Tensor, states: Tensor, model: str) -> list[SegmentScore]:
    """One a segment of `read`, each a list of token ids; their durations are not known here.

    `logits`: `[num_tokens + 1, vocab_size]`, row i predicts token i of all; `states`: `[num_layers + 1, num_tokens,
    hidden_size]`.
    """
    readings, start = [], 0
    for ids in read:
        own = slice(start, start + len(ids))
        features = surprisal(logits[own], torch.tensor(ids, device=logits.device))
        pooled = states_of(states[:, own].float().mean(1), model)
        readings.append(SegmentScore(pooled, tuple(features.tolist()), len(ids), duration_ms=0.0))
        start = own.stop
    return readings
