"""Stage 6: fit a probe to labelled segments, whether or not their features fit in memory; an interrupted fit is
resumed."""

import copy
import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from semspec.errors import InvalidRequest, Mismatch
from semspec.probes.probe import Probe
from semspec.training.data.labels import Labels
from semspec.training.files import replacing
from semspec.training.trainer.descent import Descent, Outcome, Tensors, named, under
from semspec.training.trainer.recipe import Device, FitRecipe
from semspec.training.trainer.reduction import Examples, Reduction, chunks, fit_reduction, sample_of
from semspec.training.trainer.states import FeatureSource, Indices

log = logging.getLogger(__name__)
Probabilities = NDArray[np.float32]


class Checkpoint:
    """Tensors and facts, written atomically. A checkpoint with another `identity` is ignored."""

    def __init__(self, path: Path | None, identity: str) -> None:
        """Without a path nothing is saved."""
        self._path, self._identity = path, identity

    def save(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        if self._path is None:
            return
        metadata = {"identity": self._identity, "facts": json.dumps(facts)}
        with replacing(self._path) as partial:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, partial, metadata)

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The saved tensors and facts; None if there are none with this identity."""
        if self._path is None or not self._path.exists():
            return None
        try:
            with safe_open(self._path, "pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("identity") == self._identity:
                    names = list(file.keys())
                    return {name: file.get_tensor(name).clone() for name in names}, json.loads(metadata["facts"])
            log.warning("checkpoint %s belongs to another fit: restarting", self._path)
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            log.warning("checkpoint %s cannot be read (%s): restarting", self._path, error)
        return None


@dataclass(frozen=True, slots=True)
class Fit:
    """The best probe over all epochs and seeds."""

    probe: Probe
    history: tuple[float, ...]
    """Its squared error on validation, one entry per epoch."""
    seed: int
    errors_by_seed: dict[int, float]
    """Each seed's lowest squared error on validation."""


class _FitState:
    """The state of a running fit, as saved in a checkpoint."""

    def __init__(self, source: FeatureSource, recipe: FitRecipe, checkpoint: Checkpoint) -> None:
        self._source, self._recipe, self._checkpoint = source, recipe, checkpoint
        self._device = device_of(recipe.device)
        self.reduction = Reduction(source, recipe.projection).to(self._device)
        self.outcomes: list[Outcome] = []
        """Results of finished seeds."""
        self._chosen: Tensors = {}
        """The best network of the finished seeds."""
        self._descent: Descent | None = None
        """The current seed."""

    def begin(self, labels: Labels, indices: Indices) -> None:
        """Resume from the checkpoint, or start with the reduction."""
        saved = self._checkpoint.load()
        if saved is None:
            seen = sample_of(indices, self._recipe.statistics_rows)
            self.reduction = fit_reduction(self._source, labels, seen, self._recipe.projection, self._device)
            return
        tensors, facts = saved
        self.reduction.load_state_dict(under("reduction", tensors))
        self._chosen = {name: tensor.to(self._device) for name, tensor in under("chosen", tensors).items()}
        self.outcomes = [Outcome(one["seed"], tuple(one["history"])) for one in facts["outcomes"]]
        self.descent.restore(under("descent", tensors), facts["history"])

    @property
    def is_finished(self) -> bool:
        return len(self.outcomes) == len(self._recipe.seeds)

    @property
    def descent(self) -> Descent:
        """The current seed, or the next one."""
        if self._descent is None:
            seed = self._recipe.seeds[len(self.outcomes)]
            self._descent = Descent(self.reduction.num_outputs, self._recipe, seed, self._device)
        return self._descent

    @property
    def share_done(self) -> float:
        epochs = len(self.descent.history) / self._recipe.num_epochs
        return (len(self.outcomes) + epochs) / len(self._recipe.seeds)

    def save(self) -> None:
        tensors = named("reduction", self.reduction.state_dict()) | named("chosen", self._chosen)
        facts = {"outcomes": [asdict(outcome) for outcome in self.outcomes], "history": self.descent.history}
        self._checkpoint.save(tensors | named("descent", self.descent.tensors()), facts)

    def close_seed(self) -> None:
        """Finish the current seed; of equally good seeds the first is chosen."""
        outcome = self.descent.outcome
        if all(outcome.best_error < other.best_error for other in self.outcomes):
            self._chosen = self.descent.best
        self.outcomes.append(outcome)
        self._descent = None

    def result(self) -> Fit:
        """The chosen network as a plain probe over raw features."""
        best = min(self.outcomes, key=lambda outcome: outcome.best_error)
        if not isfinite(best.best_error):
            raise InvalidRequest("the fit diverged: lower probes.learning_rate", "probes.learning_rate")
        tensors = named("network", self._chosen) | {"mean": self.reduction.mean, "scale": self.reduction.scale}
        first = tensors["network.0.weight"], tensors["network.0.bias"]
        tensors["network.0.weight"], tensors["network.0.bias"] = self.reduction.fold(*first)
        with torch.device("meta"):  # avoids initialising weights that are replaced immediately
            probe = Probe(self._source.num_features, self._recipe.hidden_sizes)
        probe.load_state_dict({name: tensor.cpu() for name, tensor in tensors.items()}, assign=True)
        errors = {outcome.seed: outcome.best_error for outcome in self.outcomes}
        return Fit(probe.eval().requires_grad_(False), best.history, best.seed, errors)


def fit(
    source: FeatureSource,
    labels_array: Probabilities,
    labels: Labels,
    train_idx: Indices,
    validation_idx: Indices,
    recipe: FitRecipe,
    progress: Callable[[float], None] | None = None,
    checkpoint: Path | None = None,
) -> Fit:
    """The probe with the lowest squared error on the segments `validation_idx`, of all epochs and seeds.

    `labels_array` [len(labels)] contains the probabilities to learn, in [0, 1]. `progress` is called with the share
    done. With a `checkpoint` path, a repeated call resumes an interrupted fit after its last complete epoch, with the
    same result; the caller deletes the file once the probe is saved.

    Raises: InvalidRequest, with the remedy, when there is nothing to learn from or the fit diverges.
    """
    _check(labels_array[train_idx], labels_array[validation_idx])
    report = progress or (lambda share: None)
    identity = _identity(
        source, recipe, labels_array[train_idx], labels_array[validation_idx], train_idx, validation_idx
    )
    work = _FitState(source, recipe, Checkpoint(checkpoint, identity))
    work.begin(labels, train_idx)
    free_bytes = int(recipe.memory_gib * 2**30)
    train = Examples(source, labels, labels_array, train_idx, work.reduction, free_bytes)
    held_out = Examples(source, labels, labels_array, validation_idx, work.reduction, free_bytes - train.num_bytes)
    while not work.is_finished:
        while not work.descent.is_finished:
            work.descent.epoch(train, _within_epoch(report, work.share_done, recipe))
            work.descent.validate(held_out)
            work.save()
        work.close_seed()
    report(1.0)
    return work.result()


@torch.no_grad()
def predict(
    probe: Probe, source: FeatureSource, labels: Labels, idx: Indices, device: Device = "auto"
) -> Probabilities:
    """The probe's semantic probabilities `[len(idx)]` of the segments `idx`. Raises: Mismatch on other features."""
    if len(probe.mean) != source.num_features:
        raise Mismatch(
            f"the probe takes {len(probe.mean)} features, the source has {source.num_features}: "
            "use the layers and features it was fitted on"
        )
    target_device = device_of(device)
    probe = probe if probe.mean.device == target_device else copy.deepcopy(probe).to(target_device)
    parts = source.batches(labels, chunks(idx, source.num_features))
    probabilities = [probe(rows.to(target_device).assembled()).cpu().numpy() for rows in parts]
    return np.concatenate([np.empty(0, dtype=np.float32), *probabilities])


def device_of(name: Device) -> torch.device:
    """Raises: InvalidRequest when there is no such device."""
    if name == "cuda" and not torch.cuda.is_available():
        raise InvalidRequest("no GPU to be seen: set probes.device to auto or cpu", "probes.device")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def _check(train: Probabilities, validation: Probabilities) -> None:
    """Raises: InvalidRequest when a probe cannot be fitted to these labels."""
    for name, values in (("train", train), ("validation", validation)):
        if not len(values):
            raise InvalidRequest(f"no {name} segments: add questions, or raise shares.{name}")
        if not ((values >= 0) & (values <= 1)).all():
            raise InvalidRequest(f"labels of {name} segments outside [0, 1]: delete the labels and make them again")
    if train.min() == train.max():
        raise InvalidRequest(
            f"all {len(train)} train segments have the label {train[0]:g}, which leaves nothing to learn: "
            "add questions, raise samples.temperature, or check that the equivalence tells segments apart"
        )


def _identity(source: FeatureSource, recipe: FitRecipe, *arrays: NDArray[np.generic]) -> str:
    """Digest of a fit's settings and inputs, to recognise its checkpoint."""
    settings = recipe.model_dump(mode="json", include=set(FitRecipe.model_fields) - {"device", "memory_gib"})
    inputs = (source.role, source.features, source.layers, source.shape)
    digest = hashlib.sha256(json.dumps([settings, inputs]).encode())
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _within_epoch(progress: Callable[[float], None], start: float, recipe: FitRecipe) -> Callable[[float], None]:
    """Progress within an epoch as progress of the whole fit."""
    num_epochs = recipe.num_epochs * len(recipe.seeds)
    return lambda share: progress(start + share / num_epochs)
