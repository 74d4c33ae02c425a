"""Features of labelled segments, from samples shards that need not fit in memory."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from semspec.errors import InvalidRequest, Mismatch
from semspec.probes.probe import FeatureSet, LayerSet, layer_indices, num_features
from semspec.training.data.labels import Labels
from semspec.training.trainer.recipe import Role
from semspec.types import SURPRISAL_FEATURES

Indices = NDArray[np.int64]

BATCHES_AHEAD = 2
"""Number of batches read ahead of the current one."""


class StateStore:
    """The tensors of a samples folder, memory-mapped, so that only requested rows of a shard are read."""

    def __init__(self, folder: Path) -> None:
        """Raises: InvalidRequest when there are no shards; Mismatch when one is damaged or unlike the others."""
        self.folder = folder
        paths = sorted(folder.glob("[0-9]" * 5 + ".safetensors"))
        if not paths:
            raise InvalidRequest(f"no samples in {folder}; run the stage `samples` first")
        self._shards = {int(path.stem): _mapped(path) for path in paths}
        first = next(iter(self._shards.values()))
        for path, shard in zip(paths, self._shards.values(), strict=True):
            if {name: _kind(tensor) for name, tensor in shard.items()} != {n: _kind(t) for n, t in first.items()}:
                raise Mismatch(
                    f"{path} has other tensors than {paths[0]}: samples of two models or of two recipes; "
                    "delete the folder and sample again, or keep the two in two folders"
                )

    @property
    def shards(self) -> tuple[int, ...]:
        """Numbers of the shards, ascending."""
        return tuple(self._shards)

    def tensor(self, shard: int, name: str) -> Tensor:
        """The tensor `name` of a shard, a view of the file; index rows of it rather than use it whole."""
        try:
            return self._shards[shard][name]
        except KeyError as error:
            raise Mismatch(
                f"no {name} of samples shard {shard} in {self.folder}; run the same command again to make it"
            ) from error


def _mapped(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_slice(name)[:] for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise Mismatch(f"cannot read {path}: {error}; delete it and run the same command again") from error


def _kind(tensor: Tensor) -> tuple[torch.dtype, torch.Size]:
    return tensor.dtype, tensor.shape[1:]


@dataclass(frozen=True, slots=True)
class Rows:
    """Features of some segments in the stored dtype, before the conversion to fp32."""

    states: Tensor
    """`[num_segments, num_selected_layers, hidden_size]`; no layers if the features are surprisal only."""
    surprisal: Tensor
    """`[num_segments, num_surprisal_features]` fp32; no features if they are states only."""

    def to(self, device: torch.device) -> "Rows":
        return Rows(self.states.to(device), self.surprisal.to(device))

    def assembled(self) -> Tensor:
        """`[num_segments, num_features]` fp32, as `semspec.probes.probe.assemble`."""
        return torch.cat((self.states.flatten(1).float(), self.surprisal), 1)


class FeatureSource:
    """A probe's input features of labelled segments.

    All rows of the store are loaded into memory, in the stored dtype, if they take at most `memory_bytes`. Otherwise
    rows are read on demand, ahead of the computation. The numbers are the same either way.
    """

    def __init__(
        self, store: StateStore, role: Role, features: FeatureSet, layers: LayerSet, memory_bytes: int = 8 << 30
    ) -> None:
        """Raises: InvalidRequest when this role has no such features."""
        if role == "draft" and features != "states":
            raise InvalidRequest(f"features {features!r} of the draft, which has states only; use those", "features")
        self.role, self.features, self.layers, self.memory_bytes = role, features, layers, memory_bytes
        self._store, self._name = store, f"{role}_states"
        states = store.tensor(store.shards[0], self._name)
        self.shape: tuple[int, int] = (states.shape[1], states.shape[2])
        self._dtype = states.dtype
        self._layers = () if features == "surprisal" else layer_indices(layers, self.shape[0])
        self._num_surprisal = 0 if features == "states" else len(SURPRISAL_FEATURES)
        self.num_features = num_features(features, layers, self.shape)
        self._sizes = {shard: len(store.tensor(shard, self._name)) for shard in store.shards}
        self._starts = dict(zip(self._sizes, accumulate(self._sizes.values(), initial=0), strict=False))
        row_bytes = self.num_layers * self.shape[1] * states.element_size() + 4 * self._num_surprisal
        self.num_bytes = sum(self._sizes.values()) * row_bytes
        """Size of all rows' features in the stored dtype."""
        self._resident: Rows | None = None

    @property
    def num_layers(self) -> int:
        """Number of selected layers."""
        return len(self._layers)

    @property
    def is_resident(self) -> bool:
        """Whether all features are in memory."""
        return self.num_bytes <= self.memory_bytes

    def gather(self, labels: Labels, indices: Indices) -> Tensor:
        """`[num_segments, num_features]` fp32 of the segments `indices` of `labels`, in that order."""
        return self.read(labels, indices).assembled()

    def read(self, labels: Labels, indices: Indices) -> Rows:
        """The same features in the stored dtype."""
        shards, rows = labels.shard[indices], (labels.row if self.role == "target" else labels.draft_row)[indices]
        if (rows < 0).any():
            raise InvalidRequest("the draft has no states of target-written segments; leave those out")
        if not self.is_resident:
            return self._streamed(shards, rows)
        self._resident = self._resident or self._loaded()
        for shard in set(np.unique(shards).tolist()) - self._starts.keys():
            self._store.tensor(shard, self._name)  # raises, with the remedy
        starts = np.array([self._starts[shard] for shard in shards.tolist()], dtype=np.int64)
        chosen = torch.from_numpy(starts + rows)
        return Rows(self._resident.states[chosen], self._resident.surprisal[chosen])

    def batches(self, labels: Labels, batches: Iterable[Indices]) -> Iterator[Rows]:
        """`read` for each of `batches`; unless resident, other threads read them ahead."""
        if self.is_resident:
            yield from (self.read(labels, batch) for batch in batches)
            return
        pool = ThreadPoolExecutor(BATCHES_AHEAD, "states")
        try:
            todo = iter(batches)
            reading: deque[Future[Rows]] = deque(
                pool.submit(self.read, labels, batch) for batch in islice(todo, BATCHES_AHEAD)
            )
            while reading:
                rows = reading.popleft().result()
                yield rows
                del rows  # free it before the next read: at most BATCHES_AHEAD + 1 are in memory
                reading.extend(pool.submit(self.read, labels, batch) for batch in islice(todo, 1))
        finally:
            pool.shutdown(cancel_futures=True)

    def _loaded(self) -> Rows:
        """All rows, shard by shard."""
        rows = self._empty(sum(self._sizes.values()))
        for shard, start in self._starts.items():
            size = self._sizes[shard]
            self._copy(shard, range(size), rows, range(start, start + size))
        return rows

    def _streamed(self, shards: Indices, rows: Indices) -> Rows:
        result = self._empty(len(rows))
        for shard in np.unique(shards).tolist():
            places = np.flatnonzero(shards == shard)
            places = places[np.argsort(rows[places])]  # read the file sequentially
            self._copy(shard, rows[places].tolist(), result, places.tolist())
        return result

    def _empty(self, num_rows: int) -> Rows:
        states = torch.empty((num_rows, self.num_layers, self.shape[1]), dtype=self._dtype)
        return Rows(states, torch.empty((num_rows, self._num_surprisal)))

    def _copy(self, shard: int, rows: Iterable[int], result: Rows, places: Iterable[int]) -> None:
        """Copy rows of a shard into `result`, one by one, so that no copy is made and only selected layers are read."""
        states = self._store.tensor(shard, self._name)
        surprisal = self._store.tensor(shard, "surprisal") if self._num_surprisal else None
        selected = torch.tensor(self._layers, dtype=torch.int64)
        for row, place in zip(rows, places, strict=True):
            if self._layers == tuple(range(self.shape[0])):
                result.states[place] = states[row]
            elif self._layers:
                torch.index_select(states[row], 0, selected, out=result.states[place])
            if surprisal is not None:
                result.surprisal[place] = surprisal[row]
