"""The soft gate on hand-made logits: each condition alone decides."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from semspec.engine.speculative import check_gate, gated_tokens
from semspec.errors import InvalidRequest
from semspec.types import Gate, SamplingParams
from tests.engine.support import GATE, UNSURE

SURE = torch.tensor([0.996, 0.001, 0.001, 0.001, 0.001]).log()
"""Of the largest entropy it has 0.02."""


def num_kept(rows: list[Tensor], drafted: list[int], gate: Gate = GATE) -> int:
    return len(gated_tokens(torch.stack([*rows, UNSURE]), drafted, gate)[0]) - 1


@pytest.mark.parametrize("row", [UNSURE, SURE])
def test_most_probable_tokens_are_kept_and_one_is_added(row: Tensor) -> None:
    assert gated_tokens(torch.stack([row] * 4), [0, 0, 0], GATE) == (
        [0, 0, 0, 0],
        (False, False, False),
    )


def test_another_token_is_kept_where_the_target_is_unsure() -> None:
    assert gated_tokens(torch.stack([UNSURE] * 2), [1], GATE) == ([1, 0], (True,))
    assert gated_tokens(torch.stack([SURE, UNSURE]), [1], GATE) == ([0], (True,))
    entropy = -float((UNSURE.exp() * UNSURE).sum()) / math.log(5)
    assert num_kept([UNSURE], [1], replace(GATE, entropy=entropy + 1e-4)) == 0
    assert num_kept([UNSURE], [1], replace(GATE, entropy=entropy - 1e-4)) == 1


def test_lower_rank_is_kept_only_while_mismatches_are_few() -> None:
    assert num_kept([UNSURE], [2]) == 1, "none so far"
    assert num_kept([UNSURE], [2], replace(GATE, recent=(True, False, False, False))) == 0
    assert (
        num_kept([UNSURE], [2], replace(GATE, recent=(True, False, False, False), density=0.25))
        == 1
    )
    assert num_kept([UNSURE], [1], replace(GATE, recent=(True,) * 4)) == 1, "within the top k"
    assert num_kept([UNSURE] * 2, [1, 2]) == 1, "the first one counts for the second"
    assert num_kept([UNSURE] * 3, [0, 1, 2], replace(GATE, density=0.5)) == 3


def test_mismatches_leave_the_window() -> None:
    recent = (True, False, False, False)
    chosen, mismatches = gated_tokens(
        torch.stack([UNSURE] * 3), [0, 2], replace(GATE, recent=recent)
    )
    assert chosen == [0, 2, 0] and mismatches == (False, False, False, True)


def test_token_below_the_floor_is_rejected() -> None:
    assert num_kept([UNSURE], [3], replace(GATE, top_k=5)) == 0
    assert num_kept([UNSURE], [3], replace(GATE, top_k=5, floor=0.09)) == 1


def test_tokens_that_were_not_fed_are_rejected() -> None:
    assert gated_tokens(torch.stack([UNSURE]), [9], GATE) == ([0], ())
    assert gated_tokens(torch.stack([UNSURE] * 2), [0, 9], GATE) == ([0, 0], (False,))


def test_impossible_tokens_have_no_entropy() -> None:
    """Logits of -inf, such as of padding."""
    row = torch.tensor([0.0, -0.1, -math.inf, -math.inf, -math.inf])
    assert num_kept([row], [1]) == 1 and num_kept([row], [2]) == 0


def test_gate_for_sampled_tokens_is_refused_by_name() -> None:
    check_gate(None, SamplingParams(0.6))
    check_gate(GATE, SamplingParams(0))
    with pytest.raises(InvalidRequest) as refusal:
        check_gate(GATE, SamplingParams(0.6))
    assert refusal.value.parameter == "gate"
