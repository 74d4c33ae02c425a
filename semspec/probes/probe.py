"""The probe: a three-layer network from one segment's states to the semantic probability of its meaning."""

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor, nn

from semspec.core import STATE_CONVENTION, SURPRISAL_FEATURES, Segmentation
from semspec.errors import Mismatch
from semspec.probes.features import FeatureSet, LayerSet, num_features

HIDDEN_SIZES = (256, 64)


@dataclass(frozen=True, slots=True)
class ProbeCard:
    """What a probe is for and where it comes from: the JSON beside its weights."""

    model: str
    """Name of the model whose states it reads."""
    fingerprint: str
    """That model's fingerprint: states of any other are refused."""
    tokenizer: str
    shape: tuple[int, int]
    """(num_layers + 1, hidden_size) of the states."""
    features: FeatureSet
    layers: LayerSet
    segmentations: tuple[Segmentation, ...]
    recipe: str
    """"cross": labelled by the model's own and the other's segments; "own": the paper's, by the model's own only."""
    data_digest: str
    state_convention: str = STATE_CONVENTION
    surprisal_features: tuple[str, ...] = SURPRISAL_FEATURES
    training: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)


class Probe(nn.Module):
    """Standardise, two hidden layers, sigmoid: SemanticSpec's regressor."""

    mean: Tensor
    scale: Tensor

    def __init__(self, num_inputs: int, hidden_sizes: tuple[int, int] = HIDDEN_SIZES) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(num_inputs))
        self.register_buffer("scale", torch.ones(num_inputs))
        first, second = hidden_sizes
        self.network = nn.Sequential(
            nn.Linear(num_inputs, first), nn.GELU(), nn.Linear(first, second), nn.GELU(), nn.Linear(second, 1)
        )

    def standardise(self, features: Tensor) -> None:
        """Fix the input scaling from training features `[num_samples, num_inputs]`."""
        self.mean.copy_(features.mean(0))
        self.scale.copy_(features.std(0) + 1e-3)

    def logit(self, features: Tensor) -> Tensor:
        return self.network((features - self.mean) / self.scale)[..., 0]  # type: ignore[no-any-return]

    def forward(self, features: Tensor) -> Tensor:
        """Semantic probability `[num_samples]` in [0, 1] of features `[num_samples, num_inputs]`."""
        return torch.sigmoid(self.logit(features))


def save_probe(probe: Probe, card: ProbeCard, path: Path) -> None:
    """Write `path` (safetensors) and its card (`.json` beside it); an interrupted write leaves no half file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.contiguous() for name, value in probe.state_dict().items()}
    partial = path.with_suffix(".partial")
    save_file(tensors, partial, {"card": json.dumps({"fingerprint": card.fingerprint})})
    partial.replace(path)
    partial.write_text(json.dumps(asdict(card), indent=2) + "\n")
    partial.replace(path.with_suffix(".json"))


@dataclass(frozen=True, slots=True)
class Artifact:
    """A probe as loaded."""

    probe: Probe
    card: ProbeCard
    digest: str
    """Of the weights file."""


def load_probe(path: Path) -> Artifact:
    """Read an artifact. Raises: Mismatch when it is missing, damaged or of another convention, with the remedy."""
    try:
        card = _card(json.loads(path.with_suffix(".json").read_text()))
        data = path.read_bytes()
        tensors = load(data)
    except (OSError, ValueError, TypeError, KeyError, SafetensorError) as error:
        raise Mismatch(
            f"cannot read probe {path}: {error}; train it with `make demo-probes` or fetch it again"
        ) from error
    if card.state_convention != STATE_CONVENTION:
        raise Mismatch(
            f"probe {path} is for states {card.state_convention!r}, this build serves {STATE_CONVENTION!r}; retrain it"
        )
    if card.features != "states" and card.surprisal_features != SURPRISAL_FEATURES:
        raise Mismatch(f"probe {path} knows other surprisal statistics than this build computes; retrain it")
    probe = Probe(num_features(card.features, card.layers, card.shape))
    try:
        probe.load_state_dict({name: value.float() for name, value in tensors.items()})
    except RuntimeError as error:
        raise Mismatch(f"probe {path} does not have the size its card says; train it again") from error
    return Artifact(probe.eval().requires_grad_(False), card, hashlib.sha256(data).hexdigest()[:16])


def _card(fields: dict[str, Any]) -> ProbeCard:
    rows, columns = fields.pop("shape")
    segmentations = tuple(Segmentation(name) for name in fields.pop("segmentations"))
    card = ProbeCard(shape=(int(rows), int(columns)), segmentations=segmentations, **fields)
    return replace(card, surprisal_features=tuple(card.surprisal_features))
