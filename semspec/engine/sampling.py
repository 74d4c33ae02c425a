"""Drawing a token from logits with a given uniform number: no hidden state, so any draw can be replayed."""

from collections.abc import Sequence

import torch
from torch import Tensor

from semspec.types import SamplingParams, uniform

LARGEST_DRAW = 1 - 2**-23
"""So that, multiplied by a total in fp32, a draw stays below the total: the token drawn is never one of weight 0."""


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
