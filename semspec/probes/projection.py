"""A probe's standardisation and first linear layer on states: computed in the verifier, or in an engine that was given
it, so that a segment's result is 256 numbers instead of all its states."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from threading import Lock
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from semspec.errors import InvalidRequest, Mismatch
from semspec.probes.probe import Artifact, layer_indices
from semspec.types import STATE_CONVENTION, ModelInfo, ProjectionSpec, States

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
        first: nn.Linear = probe.network[0]  # type: ignore[assignment]
        weight = first.weight / probe.scale
        self.projection: Projection | None = None
        if rows:
            of_states = probe.mean[:num_states], weight[:, :num_states].contiguous()
            self.projection = projection_of(card.fingerprint, rows, card.shape, *of_states, device, precision)
        rest = slice(num_states, None)  # cloned, since a view would keep the whole in memory
        self._mean, self._weight = probe.mean[rest].clone().to(device), weight[:, rest].clone().to(device)
        self._bias = first.bias.to(device)
        self._rest = nn.Sequential(*list(probe.network)[1:]).to(device)
        del probe.network[0], probe.mean, probe.scale
        self._calibrated: Callable[[Tensor], Tensor] = probe.to(device).calibrated

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
        logit: Tensor = self._rest(hidden)[..., 0]
        probabilities: list[float] = self._calibrated(logit).tolist()
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
    if len(data) != spec.num_bytes:
        raise InvalidRequest(f"data: {len(data)} bytes, but the projection takes {spec.num_bytes}", "data")
    if (digest := _digest(spec, [data])) != spec.digest:
        raise InvalidRequest(
            f"digest: the projection has the digest {digest}, not {spec.digest}; send it again", "digest"
        )
    mean, weight = torch.frombuffer(data, dtype=torch.float32).tensor_split([num_inputs])
    if not bool(mean.isfinite().all()) or not bool(weight.isfinite().all()):
        raise InvalidRequest("data: holds a value that is not a number", "data")
    return Projection(spec, mean, weight.view(spec.width, num_inputs), device)


class Projections:
    """The projections that an engine keeps, by digest; beyond `max_bytes`, the least recently used are dropped."""

    def __init__(self, info: ModelInfo, device: str, max_bytes: int) -> None:
        """`info`: of the engine's model."""
        self._model, self._shape = info.fingerprint, (info.num_layers + 1, info.hidden_size)
        self._device, self._max_bytes = device, max_bytes
        self._kept: dict[str, Projection] = {}
        self._lock = Lock()

    async def keep(self, spec: ProjectionSpec, data: AsyncIterable[bytes]) -> None:
        """See `Engine.project`."""
        if spec.model != self._model:
            raise Mismatch(
                f"the projection {spec.digest} is of states of {spec.model}, this engine serves {self._model}; "
                "give it to an engine of its model"
            )
        if spec.shape != self._shape or spec.rows[-1] >= self._shape[0]:
            raise Mismatch(
                f"the projection {spec.digest} is of rows up to {spec.rows[-1]} of states of shape {spec.shape}, this "
                f"engine's have {self._shape}; train the probe again"
            )
        if spec.num_bytes > self._max_bytes:
            raise Mismatch(
                f"the projection {spec.digest} takes {spec.num_bytes} bytes, this engine keeps {self._max_bytes}; "
                "raise SEMSPEC_*_PROJECTION_BYTES"
            )
        if self._of(spec.digest) is None:
            received = bytearray()
            async for part in data:
                received += part
                if len(received) > spec.num_bytes:
                    break
            self._add(await asyncio.to_thread(read_projection, spec, received, self._device))

    def states_of(self, pooled: Sequence[Tensor], digest: str) -> list[States]:
        """States, or what the projection `digest` makes of them if it is kept, of each of `pooled`: fp32
        `[num_layers + 1, hidden_size]` on the engine's device."""
        projection = self._of(digest) if digest else None
        if projection is None or not pooled:
            return [self._states(one, "") for one in pooled]
        return [self._states(row[None], digest) for row in projection.of_pooled(torch.stack(list(pooled)))]

    def applied(self, states: Sequence[States], digest: str) -> list[States]:
        """`states`, or what the projection `digest` makes of each if it is kept."""
        projection = self._of(digest) if digest else None
        if projection is None or not states:
            return list(states)
        return [self._states(row[None], digest) for row in projection.of_states(states)]

    def _states(self, values: Tensor, digest: str) -> States:
        array = values.cpu().numpy()
        return States(array.astype("<f4", copy=False).tobytes(), array.shape, self._model, digest)

    def _of(self, digest: str) -> Projection | None:
        with self._lock:
            projection = self._kept.pop(digest, None)
            if projection is not None:
                self._kept[digest] = projection  # the last one is the most recently used
            return projection

    def _add(self, projection: Projection) -> None:
        with self._lock:
            self._kept[projection.spec.digest] = projection
            while sum(one.nbytes for one in self._kept.values()) > self._max_bytes:
                del self._kept[next(iter(self._kept))]


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
