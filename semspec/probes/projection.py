"""A probe's standardisation and first linear layer on states: computed in the verifier, or in an engine that was given
it, so that a segment's result is 256 numbers instead of all its states."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semspec.errors import InvalidRequest, Mismatch
from semspec.probes.probe import Artifact, layer_indices
from semspec.types import STATE_CONVENTION, ProjectionSpec, States

BLOCK = 5120
"""Number of inputs that are multiplied at a time: 64 segments' and the weights' stay in a core's cache."""
MAX_MAGNITUDE = 1e9
"""Maximum absolute value of states, surprisal and projections: far above those of any model, and far below what
overflows."""

Precision = Literal["float32", "bfloat16"]


class Projection:
    """`hidden = weight @ (states - mean)`; `states`: the rows that the probe uses, flattened, `[num_inputs]`."""

    def __init__(
        self, spec: ProjectionSpec, mean: Tensor, weight: Tensor, device: str = "cpu", precision: Precision = "float32"
    ) -> None:
        """`mean`: `[num_inputs]`; `weight`: `[width, num_inputs]`, divided by the features' deviations; both fp32.

        `precision`: of the products in `of_states`, which are added in fp32.
        """
        self.spec = spec
        self._rows = _indices(spec.rows)
        self._mean, self._weight = mean.to(device), weight.to(device)
        self._mean_array: NDArray[np.float32] = mean.cpu().numpy()
        self._blocks = [block.to(getattr(torch, precision)) for block in self._weight.split(BLOCK, 1)]

    @property
    def nbytes(self) -> int:
        return self._mean.nbytes + self._weight.nbytes

    def of_pooled(self, pooled: Tensor) -> Tensor:
        """`[num_segments, width]` fp32 from states `[num_segments, num_layers + 1, hidden_size]` on the device."""
        return (pooled[:, self._rows].flatten(1).float() - self._mean) @ self._weight.T

    def of_states(self, states: Sequence[States]) -> Tensor:
        """`[num_segments, width]` fp32 from raw states. A row is NaN if a state is no number or too large.

        The bytes are read where they are, a block at a time: to copy those of 64 segments takes longer than the
        products.
        """
        arrays = [np.frombuffer(one.data, "<f4").reshape(one.shape)[self._rows].reshape(-1) for one in states]
        hidden = torch.zeros(len(states), self.spec.width, device=self._weight.device)
        largest = torch.zeros(len(states))
        buffer = torch.empty(len(states), BLOCK)
        for number, weight in enumerate(self._blocks):
            inputs = slice(number * BLOCK, number * BLOCK + weight.shape[1])
            block = buffer[:, : weight.shape[1]]
            for row, array in zip(block.numpy(), arrays, strict=True):
                np.subtract(array[inputs], self._mean_array[inputs], out=row)
            torch.maximum(largest, block.abs().amax(1), out=largest)
            hidden += (block.to(weight.device, weight.dtype) @ weight.T).float()
        return hidden.cpu().masked_fill(~(largest <= MAX_MAGNITUDE)[:, None], torch.nan)

    def of_any(self, states: Sequence[States]) -> Tensor:
        """`of_states`, or the projections that engines computed."""
        parts: dict[bool, list[int]] = {}
        for index, one in enumerate(states):
            parts.setdefault(bool(one.projection), []).append(index)
        hidden = torch.empty(len(states), self.spec.width)
        for is_projected, indices in parts.items():
            part = [states[index] for index in indices]
            hidden[indices] = _numbers(part) if is_projected else self.of_states(part)
        return hidden

    def serialised(self) -> Iterator[bytes]:
        """Mean and weight, row-major, in little-endian fp32."""
        yield self._mean_array.tobytes()
        for row in self._weight:
            yield row.cpu().numpy().tobytes()


class ServedProbe:
    """A probe with its first layer in two parts: for states, which an engine may compute, and for surprisal."""

    def __init__(self, artifact: Artifact, device: str, precision: Precision) -> None:
        """Empties the probe of `artifact`: two copies of a 32B model's first layer would be 700 MB."""
        self.card, self.digest = artifact.card, artifact.digest
        probe, card = artifact.probe, artifact.card
        rows = () if card.features == "surprisal" else layer_indices(card.layers, card.shape[0])
        num_states = len(rows) * card.shape[1]
        weight = probe.network[0].weight / probe.scale
        self.projection: Projection | None = None
        if rows:
            of_states = probe.mean[:num_states], weight[:, :num_states].contiguous()
            self.projection = projection_of(card.fingerprint, rows, card.shape, *of_states, device, precision)
        self._mean, self._weight = probe.mean[num_states:].to(device), weight[:, num_states:].to(device)
        self._bias, self._rest = probe.network[0].bias.to(device), probe.network[1:].to(device)
        del probe.network[0], probe.mean, probe.scale
        self._calibrated = probe.to(device).calibrated

    def check(self, role: str, states: Sequence[States]) -> None:
        """Raises: Mismatch when the states, or the projections of states, are not those of the probe."""
        card, own = self.card, self.projection.spec if self.projection else None
        for one in states:
            if one.model != card.fingerprint:
                raise Mismatch(
                    f"the {role} probe was trained on {card.model} ({card.fingerprint}), the states are of "
                    f"{one.model}; serve that model or train a probe for this one"
                )
            if one.projection and (own is None or one.projection != own.digest):
                raise Mismatch(
                    f"{role} states are projected by {one.projection}, the projection of the probe is "
                    f"{own.digest if own else 'none'}; send states, or projections by that"
                )
            shape = (1, own.width) if own and one.projection else card.shape
            if one.shape != shape:
                raise Mismatch(f"{role} states have shape {one.shape}, the probe wants {shape}")

    def probabilities(self, states: Sequence[States], surprisal: Tensor) -> list[float]:
        """One per segment; NaN if a number of its states is none or too large. `surprisal`: `[num_segments,
        num_surprisal_features]`."""
        hidden = self._bias.expand(len(states), -1)
        if self.projection is not None:
            hidden = hidden + self.projection.of_any(states).to(hidden.device)
        if self._weight.shape[1]:
            hidden = hidden + (surprisal.to(hidden.device) - self._mean) @ self._weight.T
        probabilities: list[float] = self._calibrated(self._rest(hidden)[..., 0]).tolist()
        return probabilities


def projection_of(
    model: str,
    rows: Sequence[int],
    shape: tuple[int, int],
    mean: Tensor,
    weight: Tensor,
    device: str,
    precision: Precision,
) -> Projection:
    """The projection of the states' part of a first layer, named by the digest of what it computes."""
    spec = ProjectionSpec("", model, tuple(rows), shape, len(weight))
    data = (tensor.numpy().data for tensor in (mean, *weight))
    return Projection(replace(spec, digest=_digest(spec, data)), mean, weight, device, precision)


def read_projection(spec: ProjectionSpec, data: bytearray, device: str) -> Projection:
    """The projection in the format of `Projection.serialised`.

    Raises: InvalidRequest when the data is not that of `spec`, or holds what is no number.
    """
    num_inputs = len(spec.rows) * spec.shape[1]
    if (digest := _digest(spec, [data])) != spec.digest:
        raise InvalidRequest(
            f"digest: the projection has the digest {digest}, not {spec.digest}; send it again", "digest"
        )
    mean, weight = torch.frombuffer(data, dtype=torch.float32).tensor_split([num_inputs])
    if not bool(mean.isfinite().all()) or not bool(weight.isfinite().all()):
        raise InvalidRequest("data: holds a value that is not a number", "data")
    return Projection(spec, mean, weight.view(spec.width, num_inputs), device)


def _numbers(projected: Sequence[States]) -> Tensor:
    """What engines computed, `[num_segments, width]`. A row is NaN if a number is none or too large."""
    numbers = torch.from_numpy(np.stack([np.frombuffer(one.data, "<f4") for one in projected]))
    return numbers.masked_fill_(~(numbers.abs() <= MAX_MAGNITUDE).all(1)[:, None], torch.nan)


def _digest(spec: ProjectionSpec, parts: Iterable[bytearray | memoryview]) -> str:
    """Names a projection: SHA-256 over what it applies to and its numbers, the first 32 hexadecimal digits."""
    head = [STATE_CONVENTION, spec.model, spec.rows, spec.shape, spec.width]
    digest = hashlib.sha256(json.dumps(head).encode())
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:32]


def _indices(rows: Sequence[int]) -> slice | list[int]:
    """A slice if the rows are consecutive: it copies nothing."""
    is_run = list(rows) == list(range(rows[0], rows[-1] + 1))
    return slice(rows[0], rows[-1] + 1) if is_run else list(rows)
