"""Stage 6: fit a probe to labelled segments, whether or not their features fit in memory; an interrupted fit is
resumed."""

import copy
import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from semspec.engine.device import device_of
from semspec.errors import InvalidRequest, Mismatch
from semspec.probes.probe import Probe
from semspec.training.data.labels import Labels
from semspec.training.files import write_tensors
from semspec.training.trainer.descent import Descent, named, under
from semspec.training.trainer.recipe import Device, FitRecipe
from semspec.training.trainer.reduction import Examples, Reduction, chunks, fit_reduction, sample_of
from semspec.training.trainer.states import FeatureSource, Indices

log = logging.getLogger(__name__)
Probabilities = NDArray[np.float32]


class Checkpoint:
    """Tensors and errors of a fit, written atomically. A checkpoint with another `identity` is ignored."""

    def __init__(self, path: Path | None, identity: str) -> None:
        """Without a path nothing is saved."""
        self._path, self._identity = path, identity

    def save(self, tensors: Mapping[str, Tensor], history: Sequence[float]) -> None:
        if self._path is not None:
            write_tensors(self._path, tensors, {"identity": self._identity, "history": json.dumps(list(history))})

    def load(self) -> tuple[dict[str, Tensor], list[float]]:
        """The saved tensors and history; empty if there are none with this identity."""
        if self._path is None or not self._path.exists():
            return {}, []
        try:
            with safe_open(self._path, "pt") as file:
                metadata = file.metadata()
                if metadata["identity"] == self._identity:
                    tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
                    return tensors, json.loads(metadata["history"])
            log.warning("checkpoint %s belongs to another fit: restarting", self._path)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            log.warning("checkpoint %s cannot be read (%s): restarting", self._path, error)
        return {}, []


@dataclass(frozen=True, slots=True)
class Fit:
    """The best probe over all epochs."""

    probe: Probe
    history: tuple[float, ...]
    """Squared error on validation, one entry per epoch."""


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
    """The probe with the lowest squared error on the segments `validation_idx`, of all epochs.

    `labels_array` [len(labels)] contains the probabilities to learn, in [0, 1]. `progress` is called with the share
    done. With a `checkpoint` path, a repeated call resumes an interrupted fit after its last complete epoch, with the
    same result; the caller deletes the file once the probe is saved.

    Raises: InvalidRequest, with the remedy, when there is nothing to learn from or the fit diverges.
    """
    _check(labels_array[train_idx], labels_array[validation_idx])
    report = progress or (lambda share: None)
    arrays = labels_array[train_idx], labels_array[validation_idx], train_idx, validation_idx
    place, device = Checkpoint(checkpoint, _identity(source, recipe, *arrays)), _device(recipe.device)
    tensors, history = place.load()
    reduction = Reduction(source, recipe.projection).to(device)
    if tensors:
        reduction.load_state_dict(under("reduction", tensors))
    else:
        seen = sample_of(train_idx, recipe.statistics_rows)
        reduction = fit_reduction(source, labels, seen, recipe.projection, device)
    descent = Descent(reduction.num_outputs, recipe, device)
    if tensors:
        descent.restore(under("descent", tensors), history)
    free_bytes = int(recipe.memory_gib * 2**30)
    train = Examples(source, labels, labels_array, train_idx, reduction, free_bytes)
    held_out = Examples(source, labels, labels_array, validation_idx, reduction, free_bytes - train.num_bytes)
    while not descent.is_finished:
        descent.epoch(train, lambda share: report((len(descent.history) + share) / recipe.num_epochs))
        descent.validate(held_out)
        state = named("reduction", reduction.state_dict()) | named("descent", descent.tensors())
        place.save(state, descent.history)
    report(1.0)
    return Fit(_probe(descent, reduction, source.num_features, recipe), tuple(descent.history))


def _probe(descent: Descent, reduction: Reduction, num_features: int, recipe: FitRecipe) -> Probe:
    """The best network as a plain probe over raw features."""
    if not isfinite(descent.best_error):
        raise InvalidRequest("the fit diverged: lower probes.learning_rate", "probes.learning_rate")
    tensors = named("network", descent.best) | {"mean": reduction.mean, "scale": reduction.scale}
    first = tensors["network.0.weight"], tensors["network.0.bias"]
    tensors["network.0.weight"], tensors["network.0.bias"] = reduction.fold(*first)
    with torch.device("meta"):  # avoids initialising weights that are replaced immediately
        probe = Probe(num_features, recipe.hidden_sizes)
    probe.load_state_dict({name: tensor.cpu() for name, tensor in tensors.items()}, assign=True)
    return probe.eval().requires_grad_(False)


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
    target_device = _device(device)
    probe = probe if probe.mean.device == target_device else copy.deepcopy(probe).to(target_device)
    parts = source.batches(labels, chunks(idx, source.num_features))
    probabilities = [probe(features.to(target_device)).cpu().numpy() for features in parts]
    return np.concatenate([np.empty(0, dtype=np.float32), *probabilities])


def _device(name: Device) -> torch.device:
    return torch.device(device_of(name, "the probes"))


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
    settings = recipe.model_dump(
        mode="json", include=set(FitRecipe.model_fields) - {"device", "memory_gib", "labels", "calibration"}
    )
    inputs = (source.role, source.features, source.layers, source.shape)
    digest = hashlib.sha256(json.dumps([settings, inputs]).encode())
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
