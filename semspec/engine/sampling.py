"""Drawing a token from logits with a given uniform number: no hidden state, so any draw can be replayed."""

from collections.abc import Sequence

import torch
from torch import Tensor

from semspec.core import Sampling, uniform


def draw_token(logits: Tensor, sampling: Sampling, position: int) -> int:
    """The token at `position` of a context; `logits`: `[vocab_size]`."""
    return draw_tokens(logits[None], sampling, [sampling.seed], position)[0]


def draw_tokens(logits: Tensor, sampling: Sampling, seeds: Sequence[int], position: int) -> list[int]:
    """One token a row at `position`, row i from the stream `seeds[i]`; `logits`: `[num_rows, vocab_size]`.

    Inverse-CDF sampling in the order of the vocabulary. (In order of probability, two tokens of nearly equal
    probability would change places with the last bit of a logit, and the draw with them.)
    """
    if sampling.temperature == 0:
        greedy: list[int] = logits.argmax(-1).tolist()
        return greedy
    cumulative = filtered(logits, sampling).cumsum(-1)
    draws = torch.tensor([[uniform(seed, "token", position)] for seed in seeds], device=logits.device)
    index = torch.searchsorted(cumulative, draws * cumulative[:, -1:], right=True)
    drawn: list[int] = index[:, 0].clamp(max=logits.shape[-1] - 1).tolist()
    return drawn


def filtered(logits: Tensor, sampling: Sampling) -> Tensor:
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
