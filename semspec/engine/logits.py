"""What is made of a forward pass: tokens drawn with given uniform numbers, so that any draw can be replayed; pooled
states, statistics and log-probabilities."""

from collections.abc import Sequence
from math import isfinite

import torch
from torch import Tensor

from semspec.engine.tokenization import ModelTokenizer
from semspec.types import SamplingParams, SegmentScore, States, TokenLogprob, uniform

LARGEST_DRAW = 1 - 2**-23
"""So that, multiplied by a total in fp32, a draw stays below the total: the token drawn is never one of weight 0."""

SURPRISING = -3.0
"""A token less probable than e^-3 (5%) counts as surprising."""


def draw_token(logits: Tensor, sampling: SamplingParams, position: int) -> int:
    """The token at `position` of a context; `logits`: `[vocab_size]`."""
    return draw_tokens(logits[None], sampling, [sampling.seed], position)[0]


def draw_tokens(logits: Tensor, sampling: SamplingParams, seeds: Sequence[int], position: int) -> list[int]:
    """One token a row at `position`, row i from the stream `seeds[i]`; `logits`: `[num_rows, vocab_size]`."""
    if sampling.temperature == 0:
        greedy: list[int] = logits.argmax(-1).tolist()
        return greedy
    return pick(filtered(logits, sampling), [uniform(seed, "token", position) for seed in seeds])


def pick(weights: Tensor, draws: Sequence[float]) -> list[int]:
    """One token a row of `weights`, `[num_rows, vocab_size]`, each with probability proportional to its weight.

    Inverse-CDF sampling in the order of the vocabulary. (In order of probability, two tokens of nearly equal
    probability would change places with the last bit of a logit, and the draw with them.)
    """
    cumulative = weights.cumsum(-1)
    column = torch.tensor([[min(draw, LARGEST_DRAW)] for draw in draws], device=weights.device)
    index = torch.searchsorted(cumulative, column * cumulative[:, -1:], right=True)
    picked: list[int] = index[:, 0].clamp(max=weights.shape[-1] - 1).tolist()
    return picked


def filtered(logits: Tensor, sampling: SamplingParams) -> Tensor:
    """Probabilities at the temperature, those outside top-k and top-p set to 0, not renormalised:
    `[num_rows, vocab_size]`. Top-p keeps the smallest set of most probable tokens that reaches it."""
    probabilities = torch.softmax(logits.float() / sampling.temperature, -1)
    if sampling.top_k == 0 and sampling.top_p >= 1:
        return probabilities
    falling = probabilities.sort(descending=True).values
    if sampling.top_k:
        falling = falling[:, : sampling.top_k]
    if sampling.top_p < 1:
        before = falling.cumsum(-1) - falling
        falling = falling.masked_fill(before >= sampling.top_p * falling.sum(-1, keepdim=True), 2.0)
    least = falling.min(-1, keepdim=True).values
    return probabilities.masked_fill_(probabilities < least, 0)


def renormalised(logits: Tensor, sampling: SamplingParams) -> Tensor:
    """The distribution that `draw_tokens` draws from, fp32 `[num_rows, vocab_size]`: one token's if greedy."""
    if sampling.temperature == 0:
        nothing = torch.zeros_like(logits, dtype=torch.float32)
        return nothing.scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    kept = filtered(logits, sampling)
    return kept / kept.sum(-1, keepdim=True)


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


def scores_of(segments: Sequence[list[int]], logits: Tensor, states: Tensor, model: str) -> list[SegmentScore]:
    """One a segment, each a list of token ids; their durations are not known here.

    `logits`: `[num_tokens + 1, vocab_size]`, row i predicts token i of all; `states`: `[num_layers + 1, num_tokens,
    hidden_size]`.
    """
    scores, start = [], 0
    for ids in segments:
        own = slice(start, start + len(ids))
        features = surprisal(logits[own], torch.tensor(ids, device=logits.device))
        pooled = states_of(states[:, own].float().mean(1), model)
        scores.append(SegmentScore(pooled, tuple(features.tolist()), len(ids), duration_ms=0.0))
        start = own.stop
    return scores


def token_logprob(tokenizer: ModelTokenizer, logits: Tensor, token: int, num_alternatives: int) -> TokenLogprob:
    """Of `token`, drawn from `logits` `[vocab_size]`, and of the likeliest tokens in its place, at temperature 1 and
    before top-k and top-p. Impossible tokens are no alternatives."""
    log_probabilities = torch.log_softmax(logits.float(), -1)
    likeliest = log_probabilities.topk(min(num_alternatives, len(log_probabilities)))
    pairs = zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)
    bytes_of = tokenizer.token_bytes
    alternatives = tuple(TokenLogprob(other, bytes_of(other), value) for other, value in pairs if isfinite(value))
    return TokenLogprob(token, bytes_of(token), float(log_probabilities[token]), alternatives)
