"""Pooled states, statistics of logits and log-probabilities from the outputs of a forward pass."""

from collections.abc import Sequence
from math import isfinite

import torch
from torch import Tensor

from semspec.engine.causal_lm import CausalLM
from semspec.types import SegmentScore, States, TokenLogprob

SURPRISING = -3.0
"""A token less probable than e^-3 (5%) counts as surprising."""


def surprisal(logits: Tensor, token_ids: Tensor) -> Tensor:
    """`SURPRISAL_FEATURES` of one segment, `[num_features]` fp32, at temperature 1 in natural logarithms.

    `logits`: `[num_tokens, vocab_size]`, row i predicts token i; `token_ids`: `[num_tokens]`.
    """
    log_probabilities = torch.log_softmax(logits.float(), -1)
    taken = log_probabilities.gather(-1, token_ids[:, None])[:, 0]
    probabilities = log_probabilities.exp()
    entropy = -(probabilities * log_probabilities).sum(-1)
    margin = taken.exp() - probabilities.square().sum(-1)
    return torch.stack(
        [
            taken.mean(),
            taken.min(),
            taken.sum(),
            taken.median(),
            entropy.mean(),
            entropy.max(),
            (logits.argmax(-1) == token_ids).float().mean(),
            (taken < SURPRISING).float().mean(),
            margin.min(),
            torch.tensor(float(len(token_ids)), device=logits.device),
        ]
    )


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


def token_logprob(lm: CausalLM, logits: Tensor, token: int, num_alternatives: int) -> TokenLogprob:
    """Of `token`, drawn from `logits` `[vocab_size]`, and of the likeliest tokens in its place, at temperature 1 and
    before top-k and top-p. Impossible tokens are no alternatives."""
    log_probabilities = torch.log_softmax(logits.float(), -1)
    likeliest = log_probabilities.topk(min(num_alternatives, len(log_probabilities)))
    pairs = zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)
    alternatives = tuple(TokenLogprob(other, lm.token_bytes(other), value) for other, value in pairs if isfinite(value))
    return TokenLogprob(token, lm.token_bytes(token), float(log_probabilities[token]), alternatives)
