"""A probe's standardisation and first linear layer on states: computed in the verifier, or in an engine that has read
it from the pair's folder, so that a segment's result is 256 numbers instead of all its states."""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock, Thread
from time import monotonic

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from semspec.errors import Mismatch
from semspec.files import file_state
from semspec.probes.probe import Artifact, layer_indices, load_card, load_probe
from semspec.types import STATE_CONVENTION, ModelInfo, States

BLOCK = 5120
"""Number of inputs that are multiplied at a time: 64 segments' and the weights' stay in a core's cache."""
MAX_MAGNITUDE = 1e9
"""Maximum absolute value of states, surprisal and projections: far above any model's, and far below what overflows."""

LOOK_S = 10.0
"""Least time between two looks into the folder for projections that calls name and the engine does not hold."""

_log = logging.getLogger(__name__)


class Projection:
    """`hidden = weight @ (states - mean)`; `states`: the rows that the probe uses, flattened, `[num_inputs]`."""

    def __init__(
        self,
        model: str,
        rows: Sequence[int],
        shape: tuple[int, int],
        mean: Tensor,
        weight: Tensor,
        device: str,
    ) -> None:
        """`model`: fingerprint of the model whose states it applies to; `rows`: of the states, ascending; `shape`:
        `(num_layers + 1, hidden_size)` of the states; `mean`: `[num_inputs]`; `weight`: `[width, num_inputs]`, divided
        by the features' deviations; both fp32."""
        self.width = len(weight)
        self.digest = _digest(
            [STATE_CONVENTION, model, list(rows), shape, self.width], mean, weight
        )
        self._rows = _indices(rows)
        self._mean, self._weight = mean.to(device), weight.to(device)
        self._mean_array: NDArray[np.float32] = mean.cpu().numpy()
        self._blocks = self._weight.split(BLOCK, 1)

    def of_pooled(self, pooled: Tensor) -> Tensor:
        """`[num_segments, width]` fp32 from states `[num_segments, num_layers + 1, hidden_size]` on the device."""
        return (pooled[:, self._rows].flatten(1).float() - self._mean) @ self._weight.T

    def of_states(self, states: Sequence[States]) -> Tensor:
        """`[num_segments, width]` fp32 from raw states. A row is NaN if a state is no number or too large.

        The bytes are read where they are, a block at a time: to copy them takes longer than the products.
        """
        arrays = [
            np.frombuffer(one.data, "<f4").reshape(one.shape)[self._rows].reshape(-1)
            for one in states
        ]
        hidden = torch.zeros(len(states), self.width, device=self._weight.device)
        largest = torch.zeros(len(states))
        buffer = torch.empty(len(states), BLOCK)
        for number, weight in enumerate(self._blocks):
            inputs = slice(number * BLOCK, number * BLOCK + weight.shape[1])
            block = buffer[:, : weight.shape[1]]
            for row, array in zip(block.numpy(), arrays, strict=True):
                np.subtract(array[inputs], self._mean_array[inputs], out=row)
            torch.maximum(largest, block.abs().amax(1), out=largest)
            hidden += block.to(weight.device) @ weight.T
        return hidden.cpu().masked_fill(~(largest <= MAX_MAGNITUDE)[:, None], torch.nan)

    def of_any(self, states: Sequence[States]) -> Tensor:
        """`of_states`, or the projections that engines computed."""
        parts: dict[bool, list[int]] = {}
        for index, one in enumerate(states):
            parts.setdefault(bool(one.projection), []).append(index)
        hidden = torch.empty(len(states), self.width)
        for is_projected, indices in parts.items():
            part = [states[index] for index in indices]
            hidden[indices] = _numbers(part) if is_projected else self.of_states(part)
        return hidden


class ServedProbe:
    """A probe with its first layer in two parts: for states, which an engine may compute, and for surprisal."""

    def __init__(self, artifact: Artifact, device: str) -> None:
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
            self.projection = Projection(card.fingerprint, rows, card.shape, *of_states, device)
        rest = slice(num_states, None)  # cloned, since a view would keep the whole in memory
        self._mean, self._weight = (
            probe.mean[rest].clone().to(device),
            weight[:, rest].clone().to(device),
        )
        self._bias = first.bias.to(device)
        self._rest = nn.Sequential(*list(probe.network)[1:]).to(device)
        del probe.network[0], probe.mean, probe.scale

    def check(self, role: str, states: Sequence[States]) -> None:
        """Raises: Mismatch when the states, or the projections of states, are not those of the probe."""
        card, own = self.card, self.projection
        for one in states:
            if one.model != card.fingerprint:
                raise Mismatch(
                    f"the {role} probe was trained on {card.model} ({card.fingerprint}), the states are of "
                    f"{one.model}",
                    remedy="serve that model or train a probe for this one",
                )
            if one.projection and (own is None or one.projection != own.digest):
                raise Mismatch(
                    f"{role} states are projected by {one.projection}, the projection of the probe is "
                    f"{own.digest if own else 'none'}",
                    remedy="send states, or projections by that",
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
        probabilities: list[float] = torch.sigmoid(logit).tolist()
        return probabilities


class Projections:
    """The projections that an engine holds: those of its model's probes in a folder of releases."""

    def __init__(self, info: ModelInfo, device: str, folder: Path | None) -> None:
        """`info`: of the engine's model; `folder`: of releases; None: it holds no projections. Reads the folder."""
        self._model, self._shape = info.fingerprint, (info.num_layers + 1, info.hidden_size)
        self._device, self._folder = device, folder
        self._files: dict[Path, tuple[_Version, Projection | None]] = {}
        self._held: Mapping[str, Projection] = {}
        self._reading, self._looking = Lock(), Lock()
        self._next_look = 0.0
        self.read()

    @property
    def digests(self) -> tuple[str, ...]:
        """Names of the projections, in alphabetical order."""
        return tuple(sorted(self._held))

    def read(self) -> None:
        """Read what is new in the folder, and drop what is gone. Blocking; calls go on meanwhile. A probe that cannot
        be read is logged and left out: the verifier judges whole states as well."""
        with self._reading:
            files, held = dict[Path, tuple[_Version, Projection | None]](), dict[str, Projection]()
            for path, version in ({} if self._folder is None else _probes_in(self._folder)).items():
                known = self._files.get(path)
                projection = known[1] if known and known[0] == version else self._load(path)
                if projection is not None:  # two probes may have the same first layer
                    projection = held.setdefault(projection.digest, projection)
                files[path] = version, projection
            self._files, self._held = files, held

    def _load(self, path: Path) -> Projection | None:
        """None: the probe is of another model, uses no states, or cannot be read."""
        try:
            card = load_card(path)
            if card.fingerprint != self._model or card.features == "surprisal":
                return None
            if tuple(card.shape) != self._shape:
                raise Mismatch(
                    f"probe {path} is of states of shape {card.shape}, the model's have {self._shape}"
                )
            return ServedProbe(load_probe(path), self._device).projection
        except (Mismatch, RuntimeError) as error:  # such as a GPU without room for it
            _log.warning("whole states are sent for the probe %s: %s", path, error)
            return None

    def states_of(self, pooled: Sequence[Tensor], digest: str) -> list[States]:
        """States, or what the projection `digest` makes of them if it is held, of each of `pooled`: fp32
        `[num_layers + 1, hidden_size]` on the engine's device."""
        projection = self._named(digest)
        if projection is None or not pooled:
            return [self._states(one, "") for one in pooled]
        projected = projection.of_pooled(torch.stack(list(pooled))).cpu()
        return [self._states(row[None], digest) for row in projected]

    def _states(self, values: Tensor, digest: str) -> States:
        array = values.cpu().numpy()
        return States(array.astype("<f4", copy=False).tobytes(), array.shape, self._model, digest)

    def _named(self, digest: str) -> Projection | None:
        """The projection of this name; None if there is none, also in the folder when it was last read."""
        projection = self._held.get(digest)
        if digest and projection is None:
            self._look_for(digest)
        return projection

    def _look_for(self, digest: str) -> None:
        """Have the folder read by another thread, if it was not read lately."""
        with self._looking:
            if (now := monotonic()) < self._next_look:
                return
            self._next_look = now + LOOK_S
        where = (
            "set SEMSPEC_*_PAIR" if self._folder is None else f"put its release into {self._folder}"
        )
        _log.warning(
            "whole states are sent: this engine holds no projection %.32r; %s", digest, where
        )
        if self._folder is not None:
            Thread(target=self.read, name="probes", daemon=True).start()


_Version = tuple[int, ...]
"""Changes with a probe's files."""


def _probes_in(folder: Path) -> dict[Path, _Version]:
    """The probes of a release in `folder`, or of those in the folders in it, with the alternatives of each; without
    hidden folders, which mounted volumes may have."""
    found = (path for depth in range(4) for path in folder.glob(f"{'*/' * depth}*.safetensors"))
    paths = sorted(
        path
        for path in found
        if not any(one.startswith(".") for one in path.relative_to(folder).parts)
    )
    states = ((path, file_state(path), file_state(path.with_suffix(".json"))) for path in paths)
    return {path: own + card for path, own, card in states if own and card}


def _numbers(projected: Sequence[States]) -> Tensor:
    """What engines computed, `[num_segments, width]`. A row is NaN if a number is none or too large."""
    numbers = torch.from_numpy(np.stack([np.frombuffer(one.data, "<f4") for one in projected]))
    return numbers.masked_fill_(~(numbers.abs() <= MAX_MAGNITUDE).all(1)[:, None], torch.nan)


def _digest(head: list[object], mean: Tensor, weight: Tensor) -> str:
    """Names a projection: SHA-256 over what it applies to and its numbers, the first 32 hexadecimal digits."""
    digest = hashlib.sha256(json.dumps(head).encode())
    for tensor in (mean, *weight):
        digest.update(tensor.numpy().data)
    return digest.hexdigest()[:32]


def _indices(rows: Sequence[int]) -> slice | list[int]:
    """A slice if the rows are consecutive: it copies nothing."""
    is_run = list(rows) == list(range(rows[0], rows[-1] + 1))
    return slice(rows[0], rows[-1] + 1) if is_run else list(rows)
