"""Sums of states over vLLM's forward passes."""

import torch

from semspec.engine.vllm.recorder import POOLED_ROWS, StateSums


def test_rows_that_do_not_fit_side_by_side_are_added_all_the_same() -> None:
    states, rows = list(torch.randn(3, 2000, 8)), range(0, 1200, 2)
    assert len(rows) > 2 * POOLED_ROWS
    sums = StateSums(num_layers=2, hidden_size=8, device=torch.device("cpu"))
    one, other = sums.acquire(), sums.acquire()
    sums.add(states, rows, [one if row < 400 else other for row in rows])
    expected = [
        torch.stack(states)[:, part].mean(1) for part in (slice(0, 400, 2), slice(400, 1200, 2))
    ]
    torch.testing.assert_close(
        sums.means([one, other], [200, 400]), torch.stack(expected), atol=1e-5, rtol=1e-5
    )
