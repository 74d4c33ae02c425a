"""Gradient descent."""

from collections.abc import Callable, Sequence
from math import cos, inf, isnan, pi

import torch
from torch import Tensor, nn

from semspec.probes.probe import Probe
from semspec.training.trainer.recipe import FitRecipe
from semspec.training.trainer.reduction import Examples
from semspec.types import derive_seed

Tensors = dict[str, Tensor]


class Descent:
    """Trains a network. Epoch, seed and number of segments determine all randomness."""

    def __init__(self, num_inputs: int, recipe: FitRecipe, device: torch.device) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)
            self.network: nn.Sequential = Probe(num_inputs, recipe.hidden_sizes).network.to(device)
        self.history, self.best = list[float](), Tensors()
        """Squared errors on validation, one an epoch, and the network with the lowest."""
        self._recipe, self._device = recipe, device
        self._optimizer = torch.optim.AdamW(
            self.network.parameters(), recipe.learning_rate, recipe.betas, weight_decay=recipe.weight_decay
        )

    @property
    def best_error(self) -> float:
        return min((error for error in self.history if not isnan(error)), default=inf)

    @property
    def is_finished(self) -> bool:
        """Whether all epochs have run, or `patience` epochs since the best one."""
        best = self.best_error
        since_best = len(self.history) - (self.history.index(best) + 1 if best < inf else 0)
        return len(self.history) >= self._recipe.num_epochs or since_best >= self._recipe.patience

    def epoch(self, examples: Examples, progress: Callable[[float], None]) -> None:
        """Train on all of `examples` once, shuffled; `progress` is called with the share done."""
        number = len(self.history)
        generator = torch.Generator().manual_seed(derive_seed(self._recipe.seed, "epoch", number))
        batches = torch.randperm(len(examples), generator=generator).split(self._recipe.batch_size)
        for step, (features, targets) in enumerate(examples.batches(batches)):
            self._set_learning_rate((number + step / len(batches)) / self._recipe.num_epochs)
            self._loss(features, targets).backward()
            self._optimizer.step()
            self._optimizer.zero_grad()
            progress((step + 1) / len(batches))

    @torch.no_grad()
    def validate(self, examples: Examples) -> None:
        """Add the squared error to the history, and keep the network if it is the best so far."""
        total = 0.0
        for features, targets in examples.in_order():
            total += float((torch.sigmoid(self._logits(features)) - targets).double().square().sum())
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

    def _set_learning_rate(self, share: float) -> None:
        """A half cosine from the recipe's rate to 0."""
        for group in self._optimizer.param_groups:
            group["lr"] = self._recipe.learning_rate * (1 + cos(pi * share)) / 2

    def tensors(self) -> Tensors:
        """The tensors needed to resume after an epoch; the history is stored separately."""
        moments = {
            f"optimizer.{number}.{name}": value
            for number, state in self._optimizer.state_dict()["state"].items()
            for name, value in state.items()
        }
        return named("network", self.network.state_dict()) | named("best", self.best) | moments

    def restore(self, tensors: Tensors, history: Sequence[float]) -> None:
        self.network.load_state_dict(under("network", tensors))
        self.best = {name: value.to(self._device) for name, value in under("best", tensors).items()}
        self.history = list(history)
        state: dict[int, Tensors] = {}
        for key, value in under("optimizer", tensors).items():
            number, name = key.split(".")
            state.setdefault(int(number), {})[name] = value
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": state, "param_groups": groups})


def named(prefix: str, tensors: Tensors) -> Tensors:
    """The same tensors with a prefix before their names."""
    return {f"{prefix}.{name}": value for name, value in tensors.items()}


def under(prefix: str, tensors: Tensors) -> Tensors:
    """The tensors with this prefix, without it (the inverse of `named`)."""
    return {name.removeprefix(f"{prefix}."): t for name, t in tensors.items() if name.startswith(f"{prefix}.")}
