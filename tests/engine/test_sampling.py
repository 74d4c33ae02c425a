"""Drawing tokens: the right distribution, the same token for the same name, no trembling at near ties."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from semspec.engine.logits import draw_each, draw_token, filtered, pick, renormalised
from semspec.types import SamplingParams
from tests.engine.support import assert_distributed, probabilities

LOGITS = torch.tensor([1.0, 3.0, 0.0, 2.0, 2.5, -1.0, 0.5, 1.5])


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(1.0, 1.0),
        SamplingParams(0.6, 0.95),
        SamplingParams(1.3, 0.8),
        SamplingParams(0.9, 1.0, 3),
        SamplingParams(1.0, 0.7, 4),
        SamplingParams(1.0, 1.0, min_p=0.2),
        SamplingParams(1.2, 0.9, 5, min_p=0.1),
    ],
)
def test_frequencies_follow_the_filtered_distribution(sampling: SamplingParams) -> None:
    """Chi-square at fixed seeds, 0.1% level."""
    samplings = [replace(sampling, seed=seed) for seed in range(8000)]
    drawn = draw_each(LOGITS.expand(8000, -1), samplings, [5] * 8000)
    assert_distributed(
        Counter((token,) for token in drawn), probabilities(renormalised(LOGITS[None], sampling)[0])
    )


def test_filters_keep_what_they_say() -> None:
    kept = [
        (filtered(LOGITS[None], SamplingParams(1.0, top_p, top_k)) > 0).sum().item()
        for top_p, top_k in ((1, 0), (1, 3), (0.4, 0))
    ]
    assert kept == [8, 3, 1]
    probabilities = torch.softmax(LOGITS, -1).sort(descending=True).values
    for num_kept in range(1, 8):
        top_p = float(probabilities[:num_kept].sum()) - 1e-4
        assert (filtered(LOGITS[None], SamplingParams(1.0, top_p)) > 0).sum().item() == num_kept


def test_min_p_keeps_tokens_by_their_share_of_the_largest() -> None:
    probabilities = torch.softmax(LOGITS / 0.7, -1)
    for share in (1.0, 0.5, 0.05):
        kept = filtered(LOGITS[None], SamplingParams(0.7, 1.0, min_p=share))[0] > 0
        assert torch.equal(kept, probabilities >= share * probabilities.max())
    together = SamplingParams(1.0, 0.8, 3, min_p=0.5)  # top-p counts in what min-p leaves
    assert (filtered(LOGITS[None], together)[0] > 0).nonzero()[:, 0].tolist() == [1, 4]


def test_zero_temperature_is_greedy() -> None:
    assert draw_token(LOGITS, SamplingParams(0.0, 0.1, 1, seed=3), position=9) == 1


def test_largest_draw_finds_no_token_of_weight_zero() -> None:
    weights = torch.tensor([[0.3, 0.3, 0.1, 0.0]]) / torch.tensor([[1.0], [3.0], [0.7]])
    assert pick(weights, [1 - 2**-53] * 3).tolist() == [2, 2, 2]


def test_near_ties_do_not_tremble() -> None:
    flat = torch.zeros(500)
    noisy = flat + 1e-6 * torch.randn(500, generator=torch.Generator().manual_seed(0))
    samplings = [SamplingParams(1.0, 1.0, seed=seed) for seed in range(400)]
    same = [draw_each(row[None].expand(400, -1), samplings, [0] * 400) for row in (flat, noisy)]
    assert sum(a == b for a, b in zip(*same, strict=True)) >= 399


@pytest.mark.parametrize("scale", [0.1, 2.0, 8.0])
@pytest.mark.parametrize(
    "fields", [{"top_p": 0.9}, {"top_k": 20}, {"top_k": 50, "top_p": 0.8}, {"min_p": 0.05}]
)
def test_large_vocabulary_equals_full_sort(scale: float, fields: dict[str, Any]) -> None:
    """Flat distributions reach beyond the tokens that are sorted first, peaked ones do not."""
    logits = scale * torch.randn(4, 20_000, generator=torch.Generator().manual_seed(3))
    sampling = SamplingParams(0.7, **({"top_p": 1.0} | fields))
    found, probabilities = filtered(logits, sampling), torch.softmax(logits / 0.7, -1).double()
    for row, kept in zip(probabilities, found > 0, strict=True):
        if sampling.min_p:
            row = row.where(row >= sampling.min_p * row.max(), 0)
        descending = row.sort(descending=True).values[: sampling.top_k or None]
        before = (descending.cumsum(0) - descending) / descending.sum()
        num_kept = int(((before < sampling.top_p) & (descending > 0)).sum())
        assert abs(int(kept.sum()) - num_kept) <= 1  # of a token on the border
        assert set(kept.nonzero()[:, 0].tolist()) >= set(row.topk(num_kept - 1).indices.tolist())
