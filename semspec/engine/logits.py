"""Tokens, surprisal statistics and log-probabilities from logits.

Tokens are drawn with uniform numbers that derive from the request's seed, so that any draw can be replayed.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite

import torch
from torch import Tensor

from semspec.device import on_device
from semspec.engine.tokenization import ModelTokenizer
from semspec.types import SamplingParams, SegmentScore, States, TokenLogprob, uniform

LARGEST_DRAW = 1 - 2**-23
"""Upper limit of a uniform number: its fp32 product with a total is below the total, so weight 0 is never drawn."""

NUM_SORTED = 512
"""Number of most probable tokens that top-p sorts first; they nearly always reach the probability that it keeps."""

SURPRISING = -3.0
"""A token less probable than e^-3 (5%) counts as surprising."""


def draw_token(
    logits: Tensor, sampling: SamplingParams, position: int, ended: ModelTokenizer | None = None
) -> int:
    """Draw the token at `position` of a context; `logits`: `[vocab_size]`.

    `ended`: the model's tokenizer if a look-ahead token ended a sentence before `position`; the token drawn here then
    begins with white space. The model and random stream that wrote the sentence draw the look-ahead token again. Others
    may draw a token that continues the sentence (a 5 after "3."); it is then drawn again, among the tokens that begin
    with white space. So the token has the model's distribution, given that the sentence has ended.
    """
    [token] = draw_each(logits[None], [sampling], [position])
    if ended is None or ended.begins_with_space(token):
        return token
    draw = uniform(sampling.seed, "token after an end", position)
    return int(pick(after_end(ended, logits, sampling)[None], [draw])[0])


def draw_each(
    logits: Tensor, samplings: Sequence[SamplingParams], positions: Sequence[int]
) -> list[int]:
    """Return the tokens of `draw_tokens` as numbers."""
    drawn: list[int] = draw_tokens(logits, samplings, positions).tolist()
    return drawn


def draw_tokens(
    logits: Tensor, samplings: Sequence[SamplingParams], positions: Sequence[int]
) -> Tensor:
    """Draw a token from each row of `logits` `[num_rows, vocab_size]`, with `samplings[i]` at `positions[i]`.

    Rows that differ only in their seeds are drawn together. The tokens, `[num_rows]`, are on the device of `logits`.
    """
    groups: dict[SamplingParams, list[int]] = {}
    for row, sampling in enumerate(samplings):
        groups.setdefault(replace(sampling, seed=0), []).append(row)

    def draw(part: Tensor, rows: Sequence[int]) -> Tensor:
        sampling = samplings[rows[0]]
        if sampling.temperature == 0:
            return part.argmax(-1)
        draws = [uniform(samplings[row].seed, "token", positions[row]) for row in rows]
        return pick(filtered(part, sampling), draws)

    if len(groups) == 1:
        return draw(logits, range(len(samplings)))
    drawn = torch.empty(len(samplings), dtype=torch.int64, device=logits.device)
    for rows in groups.values():
        index = on_device(rows, logits.device)
        drawn[index] = draw(logits[index], rows)
    return drawn


def after_end(tokenizer: ModelTokenizer, logits: Tensor, sampling: SamplingParams) -> Tensor:
    """Return probabilities `[vocab_size]` of the first token after an ended sentence, from `logits` `[vocab_size]`.

    They are those of `renormalised`, restricted to tokens that begin with white space. If none of these has a
    probability above 0, the most probable of them has probability 1.
    """
    kept = renormalised(logits[None], sampling)[0]
    allowed = [
        token for token in kept.nonzero()[:, 0].tolist() if tokenizer.begins_with_space(token)
    ]
    if not allowed:
        descending = logits.argsort(descending=True).tolist()
        allowed = [next(filter(tokenizer.begins_with_space, descending), descending[0])]
        kept = torch.ones_like(kept)
    restricted = torch.zeros_like(kept)
    restricted[allowed] = kept[allowed]
    return restricted / restricted.sum()


def pick(weights: Tensor, draws: Sequence[float]) -> Tensor:
    """Draw a token from each row of `weights` `[num_rows, vocab_size]`, with probability proportional to its weight.

    Returns the tokens, `[num_rows]`, on the same device.

    This is inverse-CDF sampling in the order of the vocabulary. In order of probability, the last bit of a logit could
    swap two tokens of nearly equal probability, and so change the drawn token.
    """
    if weights.is_cuda and len(weights) == 1:
        # The kernel for a single row may differ in the last bits from run to run, and between tensor-parallel ranks.
        weights = weights.expand(2, -1)
    cumulative = weights.cumsum(-1)[: len(draws)]  # [num_rows, vocab_size]
    column = on_device([min(draw, LARGEST_DRAW) for draw in draws], weights.device)[:, None]
    index = torch.searchsorted(cumulative, column * cumulative[:, -1:], right=True)
    return index[:, 0].clamp(max=weights.shape[-1] - 1)


def filtered(logits: Tensor, sampling: SamplingParams) -> Tensor:
    """Return probabilities `[num_rows, vocab_size]` after temperature, with 0 for tokens that a filter removes.

    Min-p, top-k and top-p apply in this order. Top-p keeps the smallest set of most probable tokens whose share of the
    probability that the earlier filters leave is at least `top_p`. The result is not renormalised.
    """
    probabilities = torch.softmax(logits.float() / sampling.temperature, -1)
    if sampling.min_p:
        least = sampling.min_p * probabilities.max(-1, keepdim=True).values
        probabilities = probabilities.masked_fill_(probabilities < least, 0)
    if sampling.top_k == 0 and sampling.top_p >= 1:
        return probabilities
    least = _least_kept(probabilities, sampling)
    return probabilities.masked_fill_(probabilities < least, 0)


def _least_kept(probabilities: Tensor, sampling: SamplingParams) -> Tensor:
    """Return the smallest probability that top-k and top-p keep in each row, `[num_rows, 1]`.

    Sorting a vocabulary of 150,000 takes as long as a small model's forward pass, so only the most probable
    tokens are sorted, unless top-p keeps more.
    """
    vocab_size = probabilities.shape[-1]
    num_sorted = min(sampling.top_k or NUM_SORTED, vocab_size)
    descending = probabilities.topk(num_sorted).values
    if sampling.top_p >= 1:
        return descending[:, -1:]
    total = (descending if sampling.top_k else probabilities).sum(-1, keepdim=True)
    share = sampling.top_p * total
    if not sampling.top_k and bool((descending.sum(-1, keepdim=True) < share).any()):
        descending = probabilities.sort(descending=True).values
    sum_before = descending.cumsum(-1) - descending
    return descending.masked_fill(sum_before >= share, 2.0).min(-1, keepdim=True).values


def renormalised(logits: Tensor, sampling: SamplingParams) -> Tensor:
    """Return the distribution that `draw_each` draws from, fp32 `[num_rows, vocab_size]`; one-hot if greedy."""
    if sampling.temperature == 0:
        zeros = torch.zeros_like(logits, dtype=torch.float32)
        return zeros.scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    kept = filtered(logits, sampling)
    return kept / kept.sum(-1, keepdim=True)


def token_statistics(logits: Tensor, token_ids: Tensor) -> Tensor:
    """Return the inputs of `segment_surprisal` for each token, fp32 `[num_tokens, 4]`.

    They are the log-probability, the entropy, whether the token is the most probable, and the margin. Row i of `logits`
    `[num_tokens, vocab_size]` predicts `token_ids[i]`.
    """
    log_probabilities = torch.log_softmax(logits.float(), -1)
    token_logprobs = log_probabilities.gather(-1, token_ids[:, None])[:, 0]
    probabilities = log_probabilities.exp()
    entropy = -(probabilities * log_probabilities).sum(-1)
    margin = token_logprobs.exp() - probabilities.square().sum(-1)
    is_likeliest = (logits.argmax(-1) == token_ids).float()
    return torch.stack([token_logprobs, entropy, is_likeliest, margin], -1)


def segment_surprisal(statistics: Tensor) -> Tensor:
    """Return `SURPRISAL_FEATURES` of a segment, fp32 `[num_features]`, from the `token_statistics` of its tokens."""
    token_logprobs, entropy, is_likeliest, margin = statistics.unbind(-1)
    features = [
        token_logprobs.mean(),
        token_logprobs.min(),
        token_logprobs.sum(),
        token_logprobs.median(),
        entropy.mean(),
        entropy.max(),
        is_likeliest.mean(),
        (token_logprobs < SURPRISING).float().mean(),
        margin.min(),
        torch.tensor(float(len(statistics)), device=statistics.device),
    ]
    return torch.stack(features)


def segment_scores(statistics: Sequence[Tensor], states: Sequence[States]) -> list[SegmentScore]:
    """Return the score of each segment, from the `token_statistics` of its tokens. The caller sets `duration_ms`."""
    return [
        SegmentScore(pooled, tuple(segment_surprisal(rows).tolist()), len(rows), 0.0)
        for rows, pooled in zip(statistics, states, strict=True)
    ]


def token_logprob(
    tokenizer: ModelTokenizer, logits: Tensor, token: int, num_alternatives: int
) -> TokenLogprob:
    """Return the log-probabilities of `token` and of the most probable tokens in `logits` `[vocab_size]`.

    They are those at temperature 1, before any filter. Tokens of probability 0 are left out.
    """
    log_probabilities = torch.log_softmax(logits.float(), -1)
    likeliest = log_probabilities.topk(min(num_alternatives, len(log_probabilities)))
    pairs = zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)
    bytes_of = tokenizer.token_bytes
    alternatives = tuple(
        TokenLogprob(token_id, bytes_of(token_id), logprob)
        for token_id, logprob in pairs
        if isfinite(logprob)
    )
    return TokenLogprob(token, bytes_of(token), float(log_probabilities[token]), alternatives)
