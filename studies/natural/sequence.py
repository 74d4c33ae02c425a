"""The sequence model: a recurrent net over the target's statistics of a segment's tokens."""

from collections.abc import Mapping, Sequence
from copy import deepcopy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence, pad_sequence

from semspec.reporting.files import Row
from semspec.training.data.labels import Labels
from semspec.training.trainer.states import StateStore

Indices = NDArray[np.int64]

BATCH, NUM_EPOCHS, PATIENCE = 64, 40, 6
HIDDEN = 48
"""Numbers of each direction's state."""


def token_statistics(
    labels: Labels, store: StateStore, rows: Mapping[int, Sequence[Row]]
) -> list[Tensor]:
    """Return the statistics of each labelled segment, `[num_tokens, 4]`. `rows`: those of each samples shard."""
    segments = {
        shard: store.tensor(shard, "token_statistics").split([row["num_tokens"] for row in own])
        for shard, own in rows.items()
    }
    places = zip(labels.shard.tolist(), labels.row.tolist(), strict=True)
    return [segments[shard][row] for shard, row in places]


class SequenceNet(nn.Module):
    """A bidirectional GRU, whose states are pooled to their mean and maximum."""

    def __init__(self, mean: Tensor, scale: Tensor) -> None:
        """`mean`, `scale`: of the statistics, `[4]`."""
        super().__init__()
        self._mean, self._scale = mean, scale
        self.recurrent = nn.GRU(len(mean), HIDDEN, batch_first=True, bidirectional=True)
        self.out = nn.Linear(4 * HIDDEN, 1)

    def forward(self, segments: Sequence[Tensor]) -> Tensor:
        """Return the logits of the segments."""
        scaled = [(segment - self._mean) / self._scale for segment in segments]
        mask = pad_sequence([torch.ones(len(segment), 1) for segment in segments], True)
        packed, _ = self.recurrent(pack_sequence(scaled, enforce_sorted=False))
        states, _ = pad_packed_sequence(packed, batch_first=True)
        most = states.masked_fill(mask == 0, -torch.inf).amax(1)
        logits: Tensor = self.out(torch.cat([most, (states * mask).sum(1) / mask.sum(1)], 1))[:, 0]
        return logits


def fit_sequence(
    segments: Sequence[Tensor], targets: Tensor, train: Indices, validation: Indices, seed: int
) -> SequenceNet:
    """Fit the net to probabilities `targets`; return that of the epoch with the least loss on `validation`."""
    seen = torch.cat([segments[index] for index in train])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = SequenceNet(seen.mean(0), seen.std(0).clamp_min(1e-6))
        optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
        best, least, since = deepcopy(net), float("inf"), 0
        for _ in range(NUM_EPOCHS):
            for batch in torch.randperm(len(train)).split(BATCH):
                _loss(net, segments, targets, train[batch.numpy()]).backward()
                optimizer.step()
                optimizer.zero_grad()
            with torch.no_grad():
                loss = float(_loss(net, segments, targets, validation))
            since += 1
            if loss < least:
                best, least, since = deepcopy(net), loss, 0
            if since >= PATIENCE:
                break
    return best


def _loss(
    net: SequenceNet, segments: Sequence[Tensor], targets: Tensor, indices: Indices
) -> Tensor:
    logits = net([segments[index] for index in indices])
    return binary_cross_entropy_with_logits(logits, targets[torch.from_numpy(indices)])


@torch.no_grad()
def predict_sequence(
    net: SequenceNet, segments: Sequence[Tensor], indices: Indices
) -> NDArray[np.float32]:
    """Return the probabilities of the segments `indices`."""
    parts = np.array_split(indices, max(1, len(indices) // 512))
    logits = torch.cat([net([segments[index] for index in part]) for part in parts])
    result: NDArray[np.float32] = logits.sigmoid().numpy()
    return result
