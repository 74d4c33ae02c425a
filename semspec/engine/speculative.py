"""Exact speculative sampling (Leviathan et al. 2023): distributions and the accept rule for each token.

*Drafted* tokens are proposed by the draft model; the rule keeps the *accepted* ones. The target then draws one token:
a *recovered* token after a rejection, a *bonus* token if all were accepted.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from semspec.engine.logits import after_end, draw_each, draw_token, filtered, pick, renormalised
from semspec.engine.requests import Verify
from semspec.engine.segmentation import TokenSegmenter
from semspec.engine.tokenization import ModelTokenizer
from semspec.errors import InvalidField, InvalidRequest, Mismatch
from semspec.stops import StopSearch
from semspec.types import (
    Distribution,
    GenerationParams,
    Proposal,
    SamplingParams,
    Writer,
    shares_ordinary_tokens,
    uniform,
)

ENTRY_BYTES = 4
"""Size of a token id or a probability in a distribution."""
LEAST_CONFIDENCE = 0.4
"""A proposal ends once the product of the draft's largest probabilities, at temperature 1, is below this.

Tokens after that are rarely kept, and cost a step of the draft and a row of the target each. A token that was drawn is
never dropped, so that verification stays exact. Between .3 and .6 the speed differs by 2%.
"""
TOTAL_TOLERANCE = 1e-3
"""Maximum deviation from 1 of the sum of a distribution's rounded probabilities."""


def check_proposal(tokenizer: ModelTokenizer, proposal: Proposal) -> None:
    """Check the values in a proposal; their sizes were checked when the message was decoded.

    Raises: Mismatch for another vocabulary; InvalidRequest for an invalid token, distribution or layer.
    """
    if proposal.token_ids and not shares_ordinary_tokens(
        proposal.tokenizer, tokenizer.info.tokenizer
    ):
        raise Mismatch(
            "draft and target have different ordinary tokens, so tokens cannot be verified one by one",
            "proposal.tokenizer",
            remedy="choose a strategy that verifies segments, such as semantic",
        )
    for index, (token, distribution) in enumerate(
        zip(proposal.token_ids, proposal.distributions, strict=True)
    ):
        if flaw := _flaw(token, distribution):
            raise InvalidField(flaw, f"proposal.distributions[{index}]")
    layer, last = proposal.state_layer, tokenizer.info.num_layers
    if layer is not None and not 0 <= layer <= last:
        raise InvalidField(f"{layer}, but the states have rows 0 to {last}", "proposal.state_layer")


def segmenter_for(
    tokenizer: ModelTokenizer,
    writer: Writer,
    context_ids: Sequence[int],
    open_ids: Sequence[int],
    proposal: Proposal,
    params: GenerationParams,
    stops: StopSearch | None,
) -> TokenSegmenter:
    """Return a segmenter for the verified tokens of a proposal, after checking it.

    Raises: InvalidRequest for the open tokens; ContextTooLong; what `check_proposal` raises.
    """
    check_token_ids(tokenizer, open_ids, "open_ids")
    check_proposal(tokenizer, proposal)
    tokenizer.check_room(len(context_ids) + len(open_ids), "context")
    segmenter = TokenSegmenter(tokenizer, writer, params, context_ids, open_ids, stops)
    if segmenter.num_left < 1:
        raise InvalidField("they already fill max_tokens", "open_ids")
    return segmenter


def state_before(index: int, states: Sequence[Tensor], layer: int) -> bytes:
    """Return row `layer` of `states[index]` as `VerifiedTokens.state`; empty if there are fewer states.

    `index`: negative, counted from the end. `states`: of each token fed, fp32 `[num_layers + 1, hidden_size]`.
    """
    if index < -len(states):
        return b""
    return states[index][layer].cpu().numpy().astype("<f4").tobytes()


def check_token_ids(tokenizer: ModelTokenizer, token_ids: Sequence[int], field: str) -> None:
    """Raises: InvalidRequest when a token id has no embedding."""
    size = tokenizer.num_embeddings
    for index, token in enumerate(token_ids):
        if not 0 <= token < size:
            name = f"{field}[{index}]"
            raise InvalidRequest(
                f"{name}: {token} is outside the vocabulary of {size} tokens", name
            )


def _flaw(token: int, distribution: Distribution) -> str | None:
    """Return why a distribution, or the token drawn from it, is invalid; None if both are valid."""
    token_ids = np.frombuffer(distribution.token_ids, "<u4")
    values = np.frombuffer(distribution.probabilities, "<f4")
    if not (token_ids[1:] > token_ids[:-1]).all():
        return "token_ids must ascend"
    if not ((values > 0) & (values <= 1)).all():
        return "probabilities must be above 0 and at most 1"
    if abs((total := float(values.sum(dtype=np.float64))) - 1) > TOTAL_TOLERANCE:
        return f"probabilities must add up to 1, not {total:.4g}"
    if probability_of(token, distribution) == 0:
        return f"does not hold the token {token} that was drawn from it"
    return None


def num_embedded(drafted: Sequence[int], num_embeddings: int) -> int:
    """Return the number of `drafted` tokens before the first without an embedding.

    Models that share a tokenizer may pad it differently. The target gives an id in the draft's padding probability 0.
    """
    return next(
        (index for index, token in enumerate(drafted) if token >= num_embeddings), len(drafted)
    )


def shared_part(
    tokenizer: ModelTokenizer, proposal: Proposal
) -> tuple[int, tuple[Distribution, ...]]:
    """Return the number of drafted tokens before the first that the target lacks, and distributions without these.

    Between tokenizers that share only their ordinary tokens, all other ids of the draft are rejected with probability
    1. Their mass is left out of the distributions, so that it is not subtracted from other tokens of the target that
    have the same ids: with q' = q on shared tokens and 0 elsewhere, a rejection has probability 1 - sum(min(p, q')),
    and the recovered token the distribution norm(max(0, p - q')), so that the output keeps the distribution p.
    """
    if proposal.tokenizer == tokenizer.info.tokenizer:
        return num_embedded(proposal.token_ids, tokenizer.num_embeddings), proposal.distributions
    num_shared = tokenizer.num_ordinary(proposal.token_ids)
    return num_shared, tuple(
        _ordinary_part(tokenizer, distribution) for distribution in proposal.distributions
    )


def _ordinary_part(tokenizer: ModelTokenizer, distribution: Distribution) -> Distribution:
    token_ids = np.frombuffer(distribution.token_ids, "<u4")
    values = np.frombuffer(distribution.probabilities, "<f4")
    kept = (token_ids < tokenizer.num_ordinary_ids) & ~np.isin(token_ids, list(tokenizer.added_ids))
    return Distribution(token_ids[kept].tobytes(), values[kept].tobytes())


def draw_with_distribution(
    logits: Tensor, sampling: SamplingParams, position: int
) -> tuple[int, Distribution]:
    """Return the token that `draw_token` draws at `position`, and its distribution; `logits`: `[vocab_size]`."""
    if sampling.temperature == 0:
        return int(logits.argmax()), sparse(renormalised(logits[None], sampling)[0])
    weights = filtered(logits[None], sampling)
    token = int(pick(weights, [uniform(sampling.seed, "token", position)])[0])
    return token, sparse(weights[0] / weights.sum())


def largest_probability(logits: Tensor) -> float:
    """Return the probability of the most probable token; `logits`: `[vocab_size]`."""
    logits = logits.float()
    return float((logits.max() - logits.logsumexp(-1)).exp())


def sparse(probabilities: Tensor) -> Distribution:
    """Return the nonzero entries of `[vocab_size]` probabilities."""
    kept = probabilities.nonzero()[:, 0]
    token_ids, values = kept.cpu().numpy(), probabilities[kept].cpu().numpy()
    return Distribution(token_ids.astype("<u4").tobytes(), values.astype("<f4").tobytes())


def dense(distribution: Distribution, vocab_size: int) -> Tensor:
    """Return probabilities, fp32 `[vocab_size]`, without entries of higher token ids.

    The draft may pad its vocabulary to another size; for the target, such tokens have probability 0.
    """
    token_ids = np.frombuffer(distribution.token_ids, "<u4").astype(np.int64)
    values = np.frombuffer(distribution.probabilities, "<f4").astype(np.float32)
    num_known = int(np.searchsorted(token_ids, vocab_size))
    probabilities = torch.zeros(vocab_size)
    probabilities[torch.from_numpy(token_ids[:num_known])] = torch.from_numpy(values[:num_known])
    return probabilities


def probability_of(token: int, distribution: Distribution) -> float:
    """Return the probability of `token` in `distribution`; 0 if it has no entry."""
    token_ids = np.frombuffer(distribution.token_ids, "<u4")
    index = int(np.searchsorted(token_ids, token))
    if index == len(token_ids) or token_ids[index] != token:
        return 0.0
    return float(np.frombuffer(distribution.probabilities, "<f4")[index])


def verify(logits: Tensor, request: Verify, position: int, tokenizer: ModelTokenizer) -> list[int]:
    """Apply `rejection_sample` to a request. `logits`: `[num_fed + 1, vocab_size]`; row 0 predicts `position`."""
    ended = tokenizer if request.is_after_end else None
    return rejection_sample(
        logits, request.drafted, request.distributions, request.sampling, position, ended
    )


def rejection_sample(
    logits: Tensor,
    drafted: Sequence[int],
    distributions: Sequence[Distribution],
    sampling: SamplingParams,
    position: int,
    ended: ModelTokenizer | None = None,
) -> list[int]:
    """Return the accepted tokens of `drafted` plus one recovered or bonus token, distributed as the target's.

    `logits`: `[num_fed + 1, vocab_size]`, row i predicts the token at `position` + i. `num_fed` and `distributions` are
    `shared_part` of the proposal: the first drafted token that was not fed is rejected. The draft must use another
    random stream than `sampling.seed`: given that a token was rejected, its draw is no longer uniform. `ended`: as in
    `draw_token`, for the first token.

    A drafted token of probability 1 is accepted with probability p(x), or else recovered from p without x. Drawing from
    p and comparing does both. So if all drafted tokens have probability 1, or there are none, the tokens are drawn by
    `draw_each`, and are those that the target would write alone.
    """
    num_fed = len(logits) - 1
    if all(len(distribution.token_ids) == ENTRY_BYTES for distribution in distributions):
        drawn = draw_each(logits, [sampling] * len(logits), range(position, position + len(logits)))
        if ended:
            drawn[0] = draw_token(logits[0], sampling, position, ended)
        num_equal = next((i for i in range(num_fed) if drafted[i] != drawn[i]), num_fed)
        return drawn[: num_equal + 1]
    target = renormalised(logits[: num_fed + (num_fed < len(drafted))], sampling)
    if ended:
        target[0] = after_end(ended, logits[0], sampling)
    fed = torch.tensor(drafted[:num_fed], dtype=torch.long, device=target.device)
    target_probabilities = target[:num_fed].gather(1, fed[:, None])[:, 0].tolist()
    target_probabilities += [0.0] * (len(drafted) - num_fed)  # the first of these is rejected
    for index, (token, distribution) in enumerate(zip(drafted, distributions, strict=True)):
        draw = uniform(sampling.seed, "token-accept", position + index)
        if draw * probability_of(token, distribution) >= target_probabilities[index]:
            recovered = _recovered(
                target[index], distribution, uniform(sampling.seed, "token", position + index)
            )
            return [*drafted[:index], recovered]
    return [*drafted, draw_token(logits[-1], sampling, position + len(drafted))]


def _recovered(target: Tensor, distribution: Distribution, draw: float) -> int:
    """Draw a token from norm(max(0, target - draft)); `target`: `[vocab_size]`."""
    surplus = (target - dense(distribution, len(target)).to(target.device)).clamp_(min=0)
    if not surplus.any():  # equal distributions, rejected by a rounding error
        surplus = target
    return int(pick(surplus[None], [draw])[0])
