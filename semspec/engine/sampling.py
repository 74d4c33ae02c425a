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

    Inverse-CDF sampling over the temperature-scaled distribution, sorted by probability and cut by top-k, then top-p
    (nucleus: the smallest set whose probability reaches top_p).
    """
    if sampling.temperature == 0:
        return logits.argmax(-1).tolist()
    ids, cumulative = nucleus(logits, sampling)
    draws = torch.tensor([[uniform(seed, "token", position)] for seed in seeds], device=logits.device)
    index = torch.searchsorted(cumulative, draws * cumulative[:, -1:], right=True).clamp(max=ids.shape[1] - 1)
    return ids.gather(-1, index)[:, 0].tolist()


def nucleus(logits: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Tokens by falling probability, and the cumulative (not renormalised) probabilities of those that may be drawn;
    behind the last of them the cumulative probability stays flat. Both `[num_rows, vocab_size]`."""
    probabilities, ids = torch.softmax(logits.float() / sampling.temperature, -1).sort(descending=True, stable=True)
    if sampling.top_k:
        probabilities[:, sampling.top_k :] = 0
        probabilities /= probabilities.sum(-1, keepdim=True)
    cumulative = probabilities.cumsum(-1)
    if sampling.top_p < 1:
        is_outside = cumulative - probabilities >= sampling.top_p
        cumulative = probabilities.masked_fill_(is_outside, 0).cumsum(-1)
    return ids, cumulative
