"""Stage 6: fit a probe to labelled segments, whether or not their features fit in memory."""

import copy
from collections.abc import Callable
from math import cos, inf, isfinite, isnan, pi

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from semspec.device import device_of
from semspec.errors import InvalidRequest, Mismatch
from semspec.probes.probe import Probe
from semspec.training.data.labels import Labels
from semspec.training.trainer.recipe import Device, FitRecipe
from semspec.training.trainer.reduction import Examples, Reduction, chunks, fit_reduction, sample_of
from semspec.training.trainer.states import FeatureSource, Indices
from semspec.types import derive_seed

Probabilities = NDArray[np.float32]

BETAS = 0.9, 0.95
"""Betas of AdamW, those of SemanticSpec."""
STATISTICS_ROWS = 20_000
"""Segments that the scaling and the projection are taken from."""


class NetworkTrainer:
    """Trains a network. Epoch, seed and number of segments determine all randomness."""

    def __init__(self, num_inputs: int, recipe: FitRecipe, device: torch.device) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)
            self.network: nn.Sequential = Probe(num_inputs, recipe.hidden_sizes).network.to(device)
        self.history, self.best = list[float](), dict[str, Tensor]()
        """Squared errors on validation, one an epoch, and the network with the lowest."""
        self._recipe = recipe
        self._optimizer = torch.optim.AdamW(
            self.network.parameters(), recipe.learning_rate, BETAS, weight_decay=0.01
        )

    @property
    def best_error(self) -> float:
        return min((error for error in self.history if not isnan(error)), default=inf)

    @property
    def is_finished(self) -> bool:
        """Return whether all epochs have run, or `patience` epochs since the best one."""
        best = self.best_error
        since_best = len(self.history) - (self.history.index(best) + 1 if best < inf else 0)
        return len(self.history) >= self._recipe.num_epochs or since_best >= self._recipe.patience

    def epoch(self, examples: Examples, progress: Callable[[float], None]) -> None:
        """Train on all of `examples` once, shuffled; `progress` is called with the share done."""
        number = len(self.history)
        generator = torch.Generator().manual_seed(derive_seed(self._recipe.seed, "epoch", number))
        batches = torch.randperm(len(examples), generator=generator).split(self._recipe.batch_size)
        for step, (features, targets) in enumerate(examples.batches(batches)):
            share = (number + step / len(batches)) / self._recipe.num_epochs
            for group in self._optimizer.param_groups:
                # half a cosine, to 0
                group["lr"] = self._recipe.learning_rate * (1 + cos(pi * share)) / 2
            self._loss(features, targets).backward()
            self._optimizer.step()
            self._optimizer.zero_grad()
            progress((step + 1) / len(batches))

    @torch.no_grad()
    def validate(self, examples: Examples) -> None:
        """Add the squared error to the history, and keep the network if it is the best so far."""
        total = 0.0
        for features, targets in examples.in_order():
            total += float(
                (torch.sigmoid(self._logits(features)) - targets).double().square().sum()
            )
        error = total / len(examples)
        if error < self.best_error:
            self.best = {name: value.clone() for name, value in self.network.state_dict().items()}
        self.history.append(error)

    def _logits(self, features: Tensor) -> Tensor:
        return self.network(features)[..., 0]  # type: ignore[no-any-return]

    def _loss(self, features: Tensor, labels: Tensor) -> Tensor:
        logits = self._logits(features)
        if self._recipe.loss == "bce":
            return nn.functional.binary_cross_entropy_with_logits(logits, labels)
        return (torch.sigmoid(logits) - labels).square().mean()


def fit(
    source: FeatureSource,
    labels_array: Probabilities,
    labels: Labels,
    train_idx: Indices,
    validation_idx: Indices,
    recipe: FitRecipe,
    progress: Callable[[float], None] = lambda share: None,
) -> tuple[Probe, list[float]]:
    """Fit a probe; return that of the epoch with the lowest squared error on `validation_idx`, and the error of each.

    `labels_array` [len(labels)] has the probabilities to learn, in [0, 1]; `progress` gets the share done.

    Raises: InvalidRequest, with the remedy, when there is nothing to learn from or the fit diverges.
    """
    _check(labels_array[train_idx], labels_array[validation_idx])
    device = torch.device(device_of(recipe.device, "the probes"))
    seen = sample_of(train_idx, STATISTICS_ROWS)
    reduction = fit_reduction(source, labels, seen, recipe.projection, device)
    descent = NetworkTrainer(reduction.num_outputs, recipe, device)
    free_bytes = int(recipe.memory_gib * 2**30)
    train = Examples(source, labels, labels_array, train_idx, reduction, free_bytes)
    held_out = Examples(
        source, labels, labels_array, validation_idx, reduction, free_bytes - train.num_bytes
    )
    while not descent.is_finished:
        descent.epoch(
            train, lambda share: progress((len(descent.history) + share) / recipe.num_epochs)
        )
        descent.validate(held_out)
    progress(1.0)
    return _probe(descent, reduction, source.num_features, recipe), descent.history


def _probe(
    descent: NetworkTrainer, reduction: Reduction, num_features: int, recipe: FitRecipe
) -> Probe:
    """Return the best network as a plain probe over raw features."""
    if not isfinite(descent.best_error):
        raise InvalidRequest("the fit diverged: lower probes.learning_rate")
    tensors = {f"network.{name}": tensor for name, tensor in descent.best.items()}
    tensors |= {"mean": reduction.mean, "scale": reduction.scale}
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
    """Return the probe's semantic probabilities `[len(idx)]` of the segments `idx`. Raises: Mismatch."""
    if len(probe.mean) != source.num_features:
        raise Mismatch(
            f"the probe takes {len(probe.mean)} features, the source has {source.num_features}: "
            "use the layers and features it was fitted on"
        )
    target_device = torch.device(device_of(device, "the probes"))
    probe = probe if probe.mean.device == target_device else copy.deepcopy(probe).to(target_device)
    parts = source.batches(labels, chunks(idx, source.num_features))
    probabilities = [probe(features.to(target_device)).cpu().numpy() for features in parts]
    return np.concatenate([np.empty(0, dtype=np.float32), *probabilities])


def _check(train: Probabilities, validation: Probabilities) -> None:
    """Raises: InvalidRequest when a probe cannot be fitted to these labels."""
    for name, values in (("train", train), ("validation", validation)):
        if not len(values):
            raise InvalidRequest(f"no {name} segments: add questions, or raise shares.{name}")
    if train.min() == train.max():
        raise InvalidRequest(
            f"all {len(train)} train segments have the label {train[0]:g}, which leaves nothing to learn: "
            "add questions, raise samples.temperature, or check that the equivalence tells segments apart"
        )
