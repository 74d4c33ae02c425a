"""How surprised the target is by a segment: statistics of logits its read computes anyway."""

import torch
from torch import Tensor

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
