"""How likely a writer found what it wrote."""

from math import isfinite

import torch
from torch import Tensor

from semspec.engine.causal_lm import CausalLM
from semspec.types import TokenLogprob


def token_logprob(lm: CausalLM, logits: Tensor, token: int, num_alternatives: int) -> TokenLogprob:
    """Of `token`, drawn from `logits` `[vocab_size]`, and of the likeliest tokens in its place, at temperature 1 and
    before top-k and top-p. Impossible tokens are no alternatives."""
    log_probabilities = torch.log_softmax(logits.float(), -1)
    likeliest = log_probabilities.topk(min(num_alternatives, len(log_probabilities)))
    pairs = zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)
    alternatives = tuple(TokenLogprob(other, lm.token_bytes(other), value) for other, value in pairs if isfinite(value))
    return TokenLogprob(token, lm.token_bytes(token), float(log_probabilities[token]), alternatives)
