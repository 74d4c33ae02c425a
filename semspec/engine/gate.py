"""The soft gate of retrieved tokens (after SENSE, arXiv 2606.00021): lossy verification for a greedy target."""

import math
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from semspec.engine.logits import after_end
from semspec.engine.tokenization import ModelTokenizer
from semspec.engine.tree import paths_of
from semspec.errors import InvalidRequest
from semspec.types import Gate, SamplingParams


def check_gate(gate: Gate | None, sampling: SamplingParams) -> None:
    """Raises: InvalidRequest when a gate is to judge sampled tokens."""
    if gate is not None and sampling.temperature > 0:
        raise InvalidRequest("gate: the soft gate is for temperature 0 only; leave it out to sample exactly", "gate")


def gated_tokens(
    logits: Tensor,
    drafted: Sequence[int],
    gate: Gate,
    ended: ModelTokenizer | None = None,
    parents: Sequence[int] = (),
) -> tuple[list[int], list[int], tuple[bool, ...]]:
    """The longest path of `drafted` up to the first token that `gate` rejects, plus the most probable token there; the
    indices of the drafted ones; and the `VerifiedTokens.mismatches`.

    `logits`: `[num_fed + 1, vocab_size]`, row 0 before the tokens, row i + 1 after `drafted[i]`; later drafted tokens
    are rejected. Probabilities are those at temperature 1. `ended`: as in `draw_token`; the first token is then
    the most probable that begins with white space. `parents`: as in `Proposal`.
    """
    likeliest: list[int] = logits.argmax(-1).tolist()
    if ended is not None:
        likeliest[0] = int(after_end(ended, logits[0], SamplingParams(0.0)).argmax())
    num_fed = len(logits) - 1
    parents = parents or range(-1, num_fed - 1)
    before = [parent + 1 for parent in parents]  # row of the distribution that judges each token
    relaxed = _relaxed(logits[before], drafted[:num_fed], gate)

    def kept(path: Sequence[int]) -> tuple[list[int], tuple[bool, ...]]:
        recent = deque(gate.recent, maxlen=gate.window)
        for index, token in enumerate(path):
            is_ranked, is_allowed = relaxed[token]
            is_match = drafted[token] == likeliest[before[token]]
            is_judged_softly = ended is None or before[token] > 0
            is_steady = sum(recent) <= gate.density * len(recent)
            recent.append(not is_match)
            if not is_match and not (is_judged_softly and is_allowed and (is_ranked or is_steady)):
                return [*path[:index]], tuple(recent)
        return [*path], tuple(recent)

    path, recent = max(map(kept, paths_of(parents)), key=lambda one: len(one[0]))
    last = path[-1] + 1 if path else 0
    return [*(drafted[index] for index in path), likeliest[last]], path, recent


def _relaxed(logits: Tensor, drafted: Sequence[int], gate: Gate) -> list[tuple[bool, bool]]:
    """Of each token: whether it is among the top k, and whether the target is unsure and the token above the floor."""
    log_probabilities = torch.log_softmax(logits.float(), -1)
    probabilities = log_probabilities.exp()
    entropy = -(probabilities * log_probabilities).nan_to_num().sum(-1) / math.log(logits.shape[-1])
    own = probabilities.gather(1, torch.tensor(drafted, dtype=torch.long, device=logits.device)[:, None])
    is_ranked = (probabilities > own).sum(-1) < gate.top_k
    is_allowed = (entropy > gate.entropy) & (own[:, 0] >= gate.floor)
    return list(zip(is_ranked.tolist(), is_allowed.tolist(), strict=True))
