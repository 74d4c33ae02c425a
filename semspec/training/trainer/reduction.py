"""Reduces raw features before a probe's first layer during training: scaling, and an optional projection per layer.

A probe of 65 layers of 5,120 numbers has 333K inputs. Projected to 256 numbers per layer it trains on 17K, and 400K
segments take 13 GB instead of 270. The reduction is affine, so it is folded into the first layer after training.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from semspec.errors import InvalidRequest
from semspec.training.data.labels import Labels
from semspec.training.trainer.states import FeatureSource, Indices, roundoff

CHUNK_BYTES = 64 << 20
"""Size of a chunk's fp32 features in a pass over the data. Fixed, so that sums do not depend on the free memory."""

SMALLEST_SCALE = 1e-3
"""Least that is added to a standard deviation, so that a constant feature stays finite."""


class Reduction(nn.Module):
    """Standardises features; with a projection, projects them and standardises the result."""

    mean: Tensor
    scale: Tensor
    matrix: Tensor
    """`[num_layers, hidden_size, width]`; width 0 without a projection."""
    offset: Tensor
    spread: Tensor

    def __init__(self, source: FeatureSource, projection: int | None) -> None:
        """`projection`: numbers per layer; None: no projection."""
        super().__init__()
        self.width = projection if projection and source.num_layers else 0
        self.num_projected = source.num_layers * self.width
        self._num_states = source.num_layers * source.shape[1]
        num_passed = source.num_features - self._num_states if self.width else source.num_features
        self.num_outputs = self.num_projected + num_passed
        self.register_buffer("mean", torch.zeros(source.num_features))
        self.register_buffer("scale", torch.ones(source.num_features))
        self.register_buffer("matrix", torch.zeros(source.num_layers, source.shape[1], self.width))
        self.register_buffer("offset", torch.zeros(self.num_projected))
        self.register_buffer("spread", torch.ones(self.num_projected))

    def forward(self, features: Tensor) -> Tensor:
        """Return `[num_segments, num_outputs]`: the projected layers one after the other, then surprisal."""
        features = (features - self.mean).div_(self.scale)
        if not self.width:
            return features
        layers = features[:, : self._num_states].unflatten(1, self.matrix.shape[:2]).transpose(0, 1)
        projected = torch.bmm(layers, self.matrix).transpose(0, 1).flatten(1)
        return torch.cat(
            (projected.sub_(self.offset).div_(self.spread), features[:, self._num_states :]), 1
        )

    def fold(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Weight and bias for standardised raw features, equivalent to the given ones for this module's outputs."""
        if not self.width:
            return weight, bias
        projected, passed = weight.double().tensor_split([self.num_projected], 1)
        projected = projected / self.spread
        layers = projected.unflatten(1, (-1, self.width)).transpose(0, 1)
        wide = torch.cat(
            [(w @ m.T.double()).float() for w, m in zip(layers, self.matrix, strict=True)], 1
        )
        return torch.cat((wide, passed.float()), 1), (
            bias - projected @ self.offset.double()
        ).float()


def fit_reduction(
    source: FeatureSource,
    labels: Labels,
    indices: Indices,
    projection: int | None,
    device: torch.device,
) -> Reduction:
    """The reduction for the segments `indices`; passes over them in chunks, with sums in double precision. Raises:
    InvalidRequest when the features are not finite."""
    reduction = Reduction(source, projection).to(device)
    mean, deviation = _moments(lambda features: features, source, labels, indices, device)
    if not bool(torch.isfinite(deviation).all()):
        raise InvalidRequest(
            "features are not finite: states beyond the range of float16", remedy="sample again"
        )
    reduction.mean.copy_(mean)
    # A mean of n numbers of a model in bfloat16, which may serve whatever sampled, as rounded on disk.
    error = (
        roundoff(torch.bfloat16) * sqrt(np.mean(1 / labels.num_tokens[indices])) + source.rounding
    )
    reduction.scale.copy_(deviation + (error * mean.abs()).clamp_min(SMALLEST_SCALE))
    if reduction.width:
        drawn = torch.randn(reduction.matrix.shape, generator=torch.Generator().manual_seed(0))
        reduction.matrix.copy_(drawn / sqrt(source.shape[1]))  # keeps about unit variance
        mean, deviation = _moments(reduction, source, labels, indices, device)
        reduction.offset.copy_(mean[: reduction.num_projected])
        reduction.spread.copy_(deviation[: reduction.num_projected] + SMALLEST_SCALE)
    return reduction


def chunks(indices: Indices, num_features: int) -> Iterator[Indices]:
    """Split `indices` into parts whose features take about `CHUNK_BYTES`."""
    size = max(16, min(4096, CHUNK_BYTES // (4 * num_features)))
    return (indices[start : start + size] for start in range(0, len(indices), size))


def _moments(
    view: Callable[[Tensor], Tensor],
    source: FeatureSource,
    labels: Labels,
    indices: Indices,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each number in `view` of the features."""
    total: Tensor | float = 0.0
    squares: Tensor | float = 0.0
    for features in source.batches(labels, chunks(indices, source.num_features)):
        values = view(features.to(device)).double()
        total = total + values.sum(0)
        squares = squares + values.square_().sum(0)
    mean, mean_square = (
        torch.as_tensor(total) / len(indices),
        torch.as_tensor(squares) / len(indices),
    )
    variance = (mean_square - mean.square()) * len(indices) / max(1, len(indices) - 1)
    return mean, variance.clamp_min(0).sqrt()


class Examples:
    """Reduced features of the segments `indices`, in batches, with their labels. The features are cached in memory if a
    projection makes them small enough."""

    def __init__(
        self,
        source: FeatureSource,
        labels: Labels,
        probabilities: NDArray[np.float32],
        indices: Indices,
        reduction: Reduction,
        memory_bytes: int,
    ) -> None:
        self._source, self._labels, self._indices, self._reduction = (
            source,
            labels,
            indices,
            reduction,
        )
        self._device = reduction.mean.device
        self.probabilities = torch.from_numpy(probabilities[indices]).to(self._device)
        size = 2 * len(indices) * reduction.num_outputs
        self._cached = self._reduced() if reduction.width and size <= memory_bytes else None
        self.num_bytes = size if self._cached is not None else 0
        """Size of the cached features."""

    def __len__(self) -> int:
        return len(self._indices)

    def batches(self, batches: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Features `[num_segments, num_outputs]` fp32 and labels of each of `batches`, which index into `indices`."""
        labels = (self.probabilities[batch.to(self._device)] for batch in batches)
        return zip(self._features(batches), labels, strict=True)

    def in_order(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all examples in chunks."""
        return self.batches([torch.from_numpy(part) for part in self._chunks()])

    def _chunks(self) -> Iterator[Indices]:
        return chunks(np.arange(len(self)), self._source.num_features)

    def _features(self, batches: Iterable[Tensor]) -> Iterator[Tensor]:
        if self._cached is None:
            return (
                part.float()
                for part in self._read(self._indices[batch.numpy()] for batch in batches)
            )
        cached = self._cached
        return (cached[batch].to(self._device).float() for batch in batches)

    def _reduced(self) -> Tensor:
        cached = torch.empty((len(self), self._reduction.num_outputs), dtype=torch.float16)
        for part, features in zip(
            self._chunks(), self._read(self._indices[c] for c in self._chunks()), strict=True
        ):
            cached[torch.from_numpy(part)] = features.cpu()
        return cached

    @torch.no_grad()
    def _read(self, batches: Iterable[Indices]) -> Iterator[Tensor]:
        """Projected features are rounded as if cached, so that the probe does not depend on the free memory."""
        for features in self._source.batches(self._labels, batches):
            reduced = self._reduction(features.to(self._device))
            yield reduced.clamp_(-6e4, 6e4).half() if self._reduction.width else reduced


def sample_of(indices: Indices, size: int) -> Indices:
    """A deterministic sample of at most `size` of `indices`, in their order."""
    if len(indices) <= size:
        return indices
    return np.sort(np.random.default_rng(0).choice(indices, size, replace=False))
