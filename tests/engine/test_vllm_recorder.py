"""Sums of states over vLLM's forward passes."""

import torch

from semspec.engine.vllm.recorder import POOLED_ROWS, Sums


def test_rows_that_do_not_fit_side_by_side_are_added_all_the_same() -> None:
    generator = torch.Generator().manual_seed(0)
    states = [torch.randn(2000, 8, generator=generator) for _ in range(3)]
    rows = torch.randperm(2000, generator=generator)[: 2 * POOLED_ROWS + 9].tolist()
    sums = Sums(num_layers=2, hidden_size=8, device=torch.device("cpu"))
    one, other = sums.acquire(), sums.acquire()
    sums.add(states, rows, [one, other, other] * (len(rows) // 3) + [one] * (len(rows) % 3))
    whole = torch.stack(states, 1)[rows]
    is_one = torch.tensor([number % 3 == 0 for number in range(len(rows))])
    is_one[len(rows) // 3 * 3 :] = True
    expected = torch.stack([whole[is_one].mean(0), whole[~is_one].mean(0)])
    means = sums.means([one, other], [int(is_one.sum()), int((~is_one).sum())])
    torch.testing.assert_close(means, expected, atol=1e-5, rtol=1e-5)
