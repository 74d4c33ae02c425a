"""Stage 5: fit a probe to labelled features."""

import copy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from semspec.probes.probe import Probe


@dataclass(frozen=True, slots=True)
class FitRecipe:
    """SemanticSpec's: AdamW, learning rate 1e-3, betas (0.9, 0.95)."""

    num_epochs: int = 14
    batch_size: int = 256
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.01
    loss: Literal["mse", "bce"] = "mse"
    seed: int = 0


def fit(features: Tensor, labels: Tensor, held_out: tuple[Tensor, Tensor], recipe: FitRecipe) -> Probe:
    """The probe with the lowest squared error on `held_out` over the epochs (early stopping).

    `features` [num_samples, num_inputs], `labels` [num_samples] in [0, 1].
    """
    torch.manual_seed(recipe.seed)
    probe = Probe(features.shape[1])
    probe.standardise(features)
    optimizer = torch.optim.AdamW(
        probe.parameters(), lr=recipe.learning_rate, betas=recipe.betas, weight_decay=recipe.weight_decay
    )
    num_steps = recipe.num_epochs * -(-len(features) // recipe.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps)
    best, best_error = copy.deepcopy(probe.state_dict()), float("inf")
    for _ in range(recipe.num_epochs):
        for batch in torch.randperm(len(features)).split(recipe.batch_size):
            loss = _loss(probe, features[batch], labels[batch], recipe.loss)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        error = float((predict(probe, held_out[0]) - held_out[1]).square().mean())
        if error < best_error:
            best, best_error = copy.deepcopy(probe.state_dict()), error
    probe.load_state_dict(best)
    return probe.eval()


def _loss(probe: Probe, features: Tensor, labels: Tensor, kind: Literal["mse", "bce"]) -> Tensor:
    if kind == "bce":
        return torch.nn.functional.binary_cross_entropy_with_logits(probe.logit(features), labels)
    error: Tensor = (probe(features) - labels).square().mean()
    return error


@torch.no_grad()
def predict(probe: Probe, features: Tensor) -> Tensor:
    """Semantic probabilities `[num_samples]`."""
    return torch.cat([probe(part) for part in features.split(4096)])
