"""Projections: the standardisation and first linear layer of a probe, applied to states.

They are computed in the verifier, or in an engine that has read the probe from the pair's folder. The engine then sends
256 numbers for a segment instead of all its states.
"""

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
"""Number of inputs that are multiplied at a time: those of 64 segments and their weights fit into a core's cache."""
MAX_MAGNITUDE = 1e9
"""Maximum absolute value of states, surprisal and projections: far above any model's, and far below an overflow."""

RESCAN_INTERVAL_S = 10.0
"""Minimum time between two searches of the folder for projections that calls name and the engine does not have."""

_log = logging.getLogger(__name__)


class Projection:
    """Computes `hidden = weight @ (states - mean)` from the rows of states that the probe uses, `[num_inputs]`."""

    def __init__(
        self,
        model: str,
        rows: Sequence[int],
        shape: tuple[int, int],
        mean: Tensor,
        weight: Tensor,
        device: str,
    ) -> None:
        """`model`: fingerprint of the model of the states; `rows`: rows of the states that are used, ascending;
        `shape`: of the states, `(num_layers + 1, hidden_size)`; `mean`: fp32 `[num_inputs]`; `weight`: fp32 `[width,
        num_inputs]`, divided by the features' standard deviations."""
        self.width = len(weight)
        self.digest = _digest(
            [STATE_CONVENTION, model, list(rows), shape, self.width], mean, weight
        )
        self._rows = _indices(rows)
        self._mean, self._weight = mean.to(device), weight.to(device)
        self._mean_array: NDArray[np.float32] = mean.cpu().numpy()
        self._blocks = self._weight.split(BLOCK, 1)

    def project_pooled(self, pooled: Tensor) -> Tensor:
        """Project states `[num_segments, num_layers + 1, hidden_size]` to `[num_segments, width]`, fp32."""
        return (pooled[:, self._rows].flatten(1).float() - self._mean) @ self._weight.T

    def project_states(self, states: Sequence[States]) -> Tensor:
        """Project whole states to fp32 `[num_segments, width]`. A row is NaN if a state is NaN or too large.

        The bytes are read in place, a block at a time, because copying them takes longer than the products.
        """
        arrays = [
            np.frombuffer(raw.data, "<f4").reshape(raw.shape)[self._rows].reshape(-1)
            for raw in states
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

    def project(self, states: Sequence[States]) -> Tensor:
        """Project whole states, or return those that engines have projected, as fp32 `[num_segments, width]`."""
        groups: dict[bool, list[int]] = {}
        for index, segment_states in enumerate(states):
            groups.setdefault(bool(segment_states.projection), []).append(index)
        hidden = torch.empty(len(states), self.width)
        for is_projected, indices in groups.items():
            group = [states[index] for index in indices]
            hidden[indices] = (
                _projected_values(group) if is_projected else self.project_states(group)
            )
        return hidden


class ServedProbe:
    """A probe whose first layer is in two parts: one for states, which an engine may compute, and one for surprisal."""

    def __init__(self, artifact: Artifact, device: str) -> None:
        """Take the weights out of `artifact`, because two copies of a 32B model's first layer would take 700 MB."""
        self.card, self.digest = artifact.card, artifact.digest
        probe, card = artifact.probe, artifact.card
        rows = () if card.features == "surprisal" else layer_indices(card.layers, card.shape[0])
        num_states = len(rows) * card.shape[1]
        first: nn.Linear = probe.network[0]  # type: ignore[assignment]
        weight = first.weight / probe.scale
        self.projection: Projection | None = None
        if rows:
            mean, state_weight = probe.mean[:num_states], weight[:, :num_states].contiguous()
            self.projection = Projection(
                card.fingerprint, rows, card.shape, mean, state_weight, device
            )
        # Cloned, because a view would keep the whole tensor in memory.
        self._mean = probe.mean[num_states:].clone().to(device)
        self._weight = weight[:, num_states:].clone().to(device)
        self._bias = first.bias.to(device)
        self._later_layers = nn.Sequential(*list(probe.network)[1:]).to(device)
        del probe.network[0], probe.mean, probe.scale

    def check(self, role: str, states: Sequence[States]) -> None:
        """Raises: Mismatch when the states, or the projections of states, are not those of the probe."""
        card, projection = self.card, self.projection
        for segment_states in states:
            if segment_states.model != card.fingerprint:
                raise Mismatch(
                    f"the {role} probe was trained on {card.model} ({card.fingerprint}), the states are of "
                    f"{segment_states.model}",
                    remedy="serve that model or train a probe for this one",
                )
            shape = card.shape
            if segment_states.projection:
                digest = projection.digest if projection else "none"
                if projection is None or segment_states.projection != digest:
                    raise Mismatch(
                        f"{role} states are projected by {segment_states.projection}, the projection of the probe is "
                        f"{digest}",
                        remedy="send whole states, or those projected by the probe's projection",
                    )
                shape = (1, projection.width)
            if segment_states.shape != shape:
                raise Mismatch(
                    f"{role} states have shape {segment_states.shape}, the probe needs {shape}"
                )

    def probabilities(self, states: Sequence[States], surprisal: Tensor) -> list[float]:
        """Return the probability of each segment; NaN if one of its states is NaN or too large.

        `surprisal`: `[num_segments, num_surprisal_features]`.
        """
        hidden = self._bias.expand(len(states), -1)
        if self.projection is not None:
            hidden = hidden + self.projection.project(states).to(hidden.device)
        if self._weight.shape[1]:
            hidden = hidden + (surprisal.to(hidden.device) - self._mean) @ self._weight.T
        logit: Tensor = self._later_layers(hidden)[..., 0]
        probabilities: list[float] = torch.sigmoid(logit).tolist()
        return probabilities


class Projections:
    """The projections of an engine: those of its model's probes in a folder of releases."""

    def __init__(self, info: ModelInfo, device: str, folder: Path | None) -> None:
        """Read the folder. `info`: of the engine's model; `folder`: of releases; None: there are no projections."""
        self._model, self._shape = info.fingerprint, (info.num_layers + 1, info.hidden_size)
        self._device, self._folder = device, folder
        self._files: dict[Path, tuple[_Version, Projection | None]] = {}
        self._by_digest: Mapping[str, Projection] = {}
        self._read_lock, self._rescan_lock = Lock(), Lock()
        self._next_rescan = 0.0
        self.read()

    @property
    def digests(self) -> tuple[str, ...]:
        """Digests of the projections, sorted."""
        return tuple(sorted(self._by_digest))

    def read(self) -> None:
        """Load new probes of the folder, and drop those that are gone. Blocks; calls continue meanwhile.

        A probe that cannot be read is logged and left out, because the verifier accepts whole states, too.
        """
        with self._read_lock:
            files = dict[Path, tuple[_Version, Projection | None]]()
            by_digest = dict[str, Projection]()
            for path, version in ({} if self._folder is None else _probes_in(self._folder)).items():
                known = self._files.get(path)
                projection = known[1] if known and known[0] == version else self._load(path)
                if projection is not None:  # two probes may have the same first layer
                    projection = by_digest.setdefault(projection.digest, projection)
                files[path] = version, projection
            self._files, self._by_digest = files, by_digest

    def _load(self, path: Path) -> Projection | None:
        """Load a probe's projection; None if it is of another model, uses no states, or cannot be read."""
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
            _log.warning(
                "cannot project states for probe %s, sending whole states: %s", path, error
            )
            return None

    def states_of(self, pooled: Sequence[Tensor], digest: str) -> list[States]:
        """Convert pooled states to messages, projected by the projection `digest` if the engine has it.

        `pooled`: fp32 `[num_layers + 1, hidden_size]` on the engine's device, of each segment.
        """
        projection = self._find(digest)
        if projection is None or not pooled:
            return [self._states(values, "") for values in pooled]
        projected = projection.project_pooled(torch.stack(list(pooled))).cpu()
        return [self._states(row[None], digest) for row in projected]

    def _states(self, values: Tensor, digest: str) -> States:
        array = values.cpu().numpy()
        return States(array.astype("<f4", copy=False).tobytes(), array.shape, self._model, digest)

    def _find(self, digest: str) -> Projection | None:
        """Return the projection with this digest; if there is none, return None and search the folder again."""
        projection = self._by_digest.get(digest)
        if digest and projection is None:
            self._rescan(digest)
        return projection

    def _rescan(self, digest: str) -> None:
        """Read the folder in another thread, unless that was done recently."""
        with self._rescan_lock:
            if (now := monotonic()) < self._next_rescan:
                return
            self._next_rescan = now + RESCAN_INTERVAL_S
        remedy = (
            "set SEMSPEC_*_PAIR" if self._folder is None else f"put its release into {self._folder}"
        )
        _log.warning(
            "sending whole states: this engine has no projection %.32r; %s", digest, remedy
        )
        if self._folder is not None:
            Thread(target=self.read, name="probes", daemon=True).start()


_Version = tuple[int, ...]
"""A value that changes with a probe's files."""


def _probes_in(folder: Path) -> dict[Path, _Version]:
    """Return the probes in a folder of one release or several, with their alternatives.

    Hidden folders, which mounted volumes may have, are ignored.
    """
    found = (path for depth in range(4) for path in folder.glob(f"{'*/' * depth}*.safetensors"))
    paths = sorted(
        path
        for path in found
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    states = ((path, file_state(path), file_state(path.with_suffix(".json"))) for path in paths)
    return {path: weights + card for path, weights, card in states if weights and card}


def _projected_values(states: Sequence[States]) -> Tensor:
    """Return states that engines have projected, `[num_segments, width]`. A row with an invalid value is NaN."""
    arrays = [np.frombuffer(projected.data, "<f4") for projected in states]
    values = torch.from_numpy(np.stack(arrays))
    return values.masked_fill_(~(values.abs() <= MAX_MAGNITUDE).all(1)[:, None], torch.nan)


def _digest(head: list[object], mean: Tensor, weight: Tensor) -> str:
    """Return the first 32 hexadecimal digits of the SHA-256 of a projection's parameters."""
    digest = hashlib.sha256(json.dumps(head).encode())
    for tensor in (mean, *weight):
        digest.update(tensor.numpy().data)
    return digest.hexdigest()[:32]


def _indices(rows: Sequence[int]) -> slice | list[int]:
    """Return `rows` as an index: a slice, which copies nothing, if they are consecutive."""
    is_consecutive = list(rows) == list(range(rows[0], rows[-1] + 1))
    return slice(rows[0], rows[-1] + 1) if is_consecutive else list(rows)
