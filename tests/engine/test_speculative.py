"""Exact speculative sampling on hand-made models: the tokens are distributed as the target's own."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from semspec.engine import speculative
from semspec.engine.logits import draw_token, renormalised
from semspec.engine.speculative import (
    draw_with_distribution,
    num_embedded,
    rejection_sample,
    sparse,
)
from semspec.types import Distribution, SamplingParams, uniform
from tests.engine.support import assert_distributed, own_stream, probabilities

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
NUM_SEEDS = 1000
TARGET_LOGITS = torch.tensor(
    [[1.0, 0.0, 2.0, -1.0], [0.0, 2.0, 0.5, 0.0], [2.0, 2.0, -2.0, 1.0], [0.0, -1.0, 1.0, 3.0]]
)
DRAFT_LOGITS = TARGET_LOGITS.flip(0) * 0.7
"""Row i: logits after token i. The two models disagree thoroughly."""
PADDED_LOGITS = torch.nn.functional.pad(DRAFT_LOGITS, (0, 2, 0, 2), value=1.0)
"""Of a draft with a vocabulary padded by two ids, which have probability 0 for the target."""


def two_tokens(seed: int, gamma: int, sampling: SamplingParams, draft: Tensor) -> tuple[int, int]:
    """The first two tokens that rounds of drafting and verifying make of the hand-made models, after token 0."""
    kept = [0]
    while len(kept) < 3:
        drafted: list[int] = []
        distributions: list[Distribution] = []
        for position in range(len(kept), len(kept) + gamma):
            logits = draft[(kept + drafted)[-1]]
            token, distribution = draw_with_distribution(
                logits, replace(sampling, seed=own_stream(seed)), position
            )
            drafted.append(token)
            distributions.append(distribution)
        fed = drafted[: num_embedded(drafted, len(TARGET_LOGITS))]
        rows = TARGET_LOGITS[[kept[-1], *fed]]
        kept += rejection_sample(
            rows, drafted, distributions, replace(sampling, seed=seed), len(kept)
        )
    return kept[1], kept[2]


@pytest.mark.parametrize(
    ("gamma", "sampling", "draft"),
    [
        *((gamma, SamplingParams(1.0, 1.0), DRAFT_LOGITS) for gamma in (1, 2, 3)),
        *((gamma, SamplingParams(0.8, 0.9), DRAFT_LOGITS) for gamma in (1, 2)),
        (2, SamplingParams(1.2, 1.0, 3), DRAFT_LOGITS),
        *((gamma, SamplingParams(1.0, 1.0), PADDED_LOGITS) for gamma in (1, 3)),
    ],
)
def test_tokens_keep_distribution(gamma: int, sampling: SamplingParams, draft: Tensor) -> None:
    """Of the first two, jointly; chi-square at fixed seeds, 0.1% level."""
    rows = [probabilities(row) for row in renormalised(TARGET_LOGITS, sampling).double()]
    expected = {
        (*one, *two): p * q for one, p in rows[0].items() for two, q in rows[one[0]].items()
    }
    assert_distributed(
        Counter(two_tokens(seed, gamma, sampling, draft) for seed in range(NUM_SEEDS)), expected
    )


@pytest.mark.parametrize(
    "sampling", [SamplingParams(0), SamplingParams(1.0, 1.0), SamplingParams(0.8, 0.9, 3)]
)
def test_certain_tokens_leave_what_the_target_draws_alone(sampling: SamplingParams) -> None:
    for seed in range(100):
        own, drafted = replace(sampling, seed=seed), [seed % 4, seed // 4 % 4, seed // 16 % 4]
        rows = TARGET_LOGITS[[0, *drafted]]
        alone = [draw_token(row, own, 7 + index) for index, row in enumerate(rows)]
        num_equal = next((i for i in range(3) if alone[i] != drafted[i]), 3)
        certain = [Distribution.certain(token) for token in drafted]
        assert rejection_sample(rows, drafted, certain, own, 7) == alone[: num_equal + 1]


def test_proposed_rejected_segments_keep_the_targets_distribution() -> None:
    """Chi-square at fixed seeds, 0.1% level, of rewrites only: the proposal, and whether there is one, depend on the
    draws of draft and verdict, not on the target's. A segment is a token of the draft's, rejected with probability
    1 - 1 / (1 + token) by a draw of its own."""
    sampling, counts = SamplingParams(1.0, 1.0), Counter[tuple[int, ...]]()
    for seed in range(NUM_SEEDS):
        rejected, _ = draw_with_distribution(
            DRAFT_LOGITS[0], replace(sampling, seed=own_stream(seed)), 1
        )
        if uniform(seed, "accept", 0) * (1 + rejected) < 1:
            continue
        rows = TARGET_LOGITS[[0, rejected]]
        chosen = rejection_sample(
            rows, [rejected], [Distribution.certain(rejected)], replace(sampling, seed=seed), 1
        )
        counts[chosen[0],] += 1
    assert_distributed(counts, probabilities(renormalised(TARGET_LOGITS[:1], sampling)[0]))


def test_refusal_by_rounding_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        speculative, "uniform", lambda seed, name, at: 1 - 2**-50 if name == "token-accept" else 0.0
    )
    target = renormalised(TARGET_LOGITS[:1], SamplingParams(1.0, 1.0))[0]
    a_little_more = sparse(target * (1 + 2**-20))
    chosen = rejection_sample(
        TARGET_LOGITS[[0, 1]], [1], [a_little_more], SamplingParams(1.0, 1.0), 0
    )
    assert chosen == [0], "the first of the vocabulary"
