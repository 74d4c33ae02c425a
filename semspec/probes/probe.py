"""The probe: a three-layer network that maps the states of a segment to its semantic probability."""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor, nn

from semspec.errors import InvalidRequest, Mismatch
from semspec.files import first_error, read_json, regular
from semspec.types import FINGERPRINT, STATE_CONVENTION, SURPRISAL_FEATURES, Segmentation

FeatureSet = Literal["states", "states+surprisal", "surprisal"]
LayerSet = Literal["all", "last"] | tuple[int, ...]
"""Rows of the states: 0 is the input of the first block, n the output of block n."""


def layer_indices(layers: LayerSet, num_layers_plus_one: int) -> tuple[int, ...]:
    """The row indices of `layers`. Raises: InvalidRequest when the states have no such rows."""
    if layers == "all":
        return tuple(range(num_layers_plus_one))
    if layers == "last":
        return (num_layers_plus_one - 1,)
    if (
        isinstance(layers, str)
        or not layers
        or any(not 0 <= index < num_layers_plus_one for index in layers)
    ):
        raise InvalidRequest(
            f"layers {layers!r} of states that have layers 0 to {num_layers_plus_one - 1}",
            "layers",
            remedy='name some of these, or "all", or "last"',
        )
    return layers


def num_features(features: FeatureSet, layers: LayerSet, shape: tuple[int, int]) -> int:
    """Width of the feature vector for states of `shape` = (num_layers + 1, hidden_size)."""
    num_states = 0 if features == "surprisal" else shape[1] * len(layer_indices(layers, shape[0]))
    return num_states + (0 if features == "states" else len(SURPRISAL_FEATURES))


def assemble(
    features: FeatureSet, layers: LayerSet, states: Tensor, surprisal: Tensor | None
) -> Tensor:
    """`[num_segments, num_features]` fp32 from states `[num_segments, num_layers + 1, hidden_size]` and surprisal
    `[num_segments, num_surprisal_features]`."""
    parts: list[Tensor] = []
    if features != "surprisal":
        chosen = (
            states if layers == "all" else states[:, list(layer_indices(layers, states.shape[1]))]
        )
        parts.append(chosen.flatten(1))
    if features != "states":
        if surprisal is None:
            raise ValueError(f"features {features!r} need surprisal statistics")
        parts.append(surprisal)
    return torch.cat([part.float() for part in parts], 1)


PROBE_FORMAT = 2
"""Format of an artifact. 2: its labels leave the judged segment out, tell ends of turns from boundaries, and contain no
cut segments. Cards without a format are of format 1."""


def card_format(fields: object) -> object:
    """The format that a card states."""
    return fields.get("format", 1) if isinstance(fields, dict) else None


HIDDEN_SIZES = (256, 64)
MAX_SHAPE = 10_000, 1_000_000
"""Upper limits of a card's shape, above any model's: the shape determines how much memory is allocated."""
LEAST_PROBABILITY = 1e-4
"""Lower limit of draft probabilities, which are divisors: a draft probability of 0 would accept every segment."""

CalibrationKind = Literal["none", "temperature"]


@dataclass(frozen=True, slots=True)
class ProbeCard:
    """Purpose and provenance of a probe: the JSON file next to its weights."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    model: str
    """Name of the model whose states are its input."""
    fingerprint: str
    """Fingerprint of that model; states of other models are rejected."""
    tokenizer: str
    shape: tuple[int, int]
    """Shape (num_layers + 1, hidden_size) of the states."""
    features: FeatureSet
    layers: LayerSet
    segmentations: tuple[Segmentation, ...]
    recipe: str
    """"cross": labelled with segments of both models; "own": with segments of its own model only, as in the paper."""
    data_digest: str
    weights_digest: str = field(default="", compare=False)
    """Digest of the weights file, written by `save_probe` and checked by `load_probe`."""
    state_convention: str = STATE_CONVENTION
    surprisal_features: tuple[str, ...] = SURPRISAL_FEATURES
    calibration: CalibrationKind = "none"
    """"temperature" is folded into the last layer."""
    training: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    format: int = PROBE_FORMAT


_CARD = TypeAdapter(ProbeCard)


class Probe(nn.Module):
    """SemanticSpec's regressor: standardisation, two hidden layers, sigmoid."""

    mean: Tensor
    scale: Tensor

    def __init__(self, num_inputs: int, hidden_sizes: tuple[int, int] = HIDDEN_SIZES) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(num_inputs))
        self.register_buffer("scale", torch.ones(num_inputs))
        first, second = hidden_sizes
        self.network = nn.Sequential(
            nn.Linear(num_inputs, first),
            nn.GELU(),
            nn.Linear(first, second),
            nn.GELU(),
            nn.Linear(second, 1),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Semantic probability `[num_samples]` in [0, 1] of features `[num_samples, num_inputs]`."""
        return torch.sigmoid(self.network((features - self.mean) / self.scale)[..., 0])


def save_probe(
    probe: Probe, card: ProbeCard, path: Path, weights_dtype: torch.dtype = torch.float32
) -> None:
    """Write `path` (safetensors) and its card (`.json` next to it), each atomically.

    `weights_dtype` is the dtype of the network. Scaling stays fp32: fp16 cannot represent a feature of
    mean 1000 and deviation 0.1, as large models have.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: (value.to(weights_dtype) if name.startswith("network.") else value).contiguous()
        for name, value in probe.state_dict().items()
    }
    partial = path.with_suffix(".partial")
    save_file(tensors, partial, {"card": json.dumps({"fingerprint": card.fingerprint})})
    partial.chmod(0o644)  # safetensors creates private files, but another user may serve them
    card = replace(card, weights_digest=_digest(partial.read_bytes()))
    partial.replace(path)
    partial.write_text(json.dumps(asdict(card), indent=2) + "\n")
    partial.replace(path.with_suffix(".json"))


@dataclass(frozen=True, slots=True)
class Artifact:
    """A loaded probe."""

    probe: Probe
    card: ProbeCard
    digest: str
    """Digest of the weights file."""


def load_card(path: Path) -> ProbeCard:
    """The card of the artifact `path`. Raises: Mismatch when it is missing, damaged or of another format."""
    with _readable(path):
        fields = read_json(path.with_suffix(".json"))
        if isinstance(fields, dict) and card_format(fields) != PROBE_FORMAT:
            raise Mismatch(
                f"probe {path} has format {card_format(fields)!r}, this build serves format {PROBE_FORMAT}",
                remedy="train it "
                "again with `semspec train run` and another `output` "
                "(the bundled pair's: `--config examples/demo/semspec_demo/probes.yaml`)",
            )
        return _card(fields)


def load_probe(path: Path) -> Artifact:
    """Load an artifact. Raises: Mismatch when it is missing, damaged, not its card's weights, or of another format or
    state convention."""
    card = load_card(path)
    with _readable(path):
        data = regular(path).read_bytes()
        tensors = load(data)
    if card.weights_digest != (digest := _digest(data)):
        raise Mismatch(
            f"probe {path} is not the weights of its card, which names the digest {card.weights_digest or 'of none'}, "
            f"not {digest}: fetch both files again, or train the probe again"
        )
    _check(card, path)
    try:
        probe = _built(card, {name: value.float() for name, value in tensors.items()})
    except (RuntimeError, KeyError, IndexError) as error:
        raise Mismatch(
            f"probe {path} does not have the size its card says", remedy="train it again"
        ) from error
    if not all(bool(value.isfinite().all()) for value in probe.state_dict().values()) or not bool(
        probe.scale.all()
    ):
        raise Mismatch(
            f"probe {path} has weights that are not finite, or a scale of 0",
            remedy="train it again",
        )
    return Artifact(probe.eval().requires_grad_(False), card, digest)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, TypeError, KeyError, SafetensorError) as error:
        raise Mismatch(
            f"cannot read probe {path}: {error}",
            remedy="train it with `semspec train run` (the bundled pair's: "
            "`--config examples/demo/semspec_demo/probes.yaml`) or fetch it again",
        ) from error


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _check(card: ProbeCard, path: Path) -> None:
    """Raises: Mismatch when this build cannot serve the probe of the card."""
    if card.state_convention != STATE_CONVENTION:
        raise Mismatch(
            f"probe {path} is for states {card.state_convention!r}, this build serves {STATE_CONVENTION!r}",
            remedy="retrain it",
        )
    if re.fullmatch("[0-9a-f]{16}", card.fingerprint):
        raise Mismatch(
            f"probe {path} names its model {card.fingerprint}, a fingerprint of an earlier definition, which covered a "
            f"part of the weights (now {FINGERPRINT}:...)",
            remedy="train it again with `semspec train run`, or fetch it again",
        )
    if card.features != "states" and card.surprisal_features != SURPRISAL_FEATURES:
        raise Mismatch(
            f"probe {path} knows other surprisal statistics than this build computes",
            remedy="retrain it",
        )
    try:
        num_features(card.features, card.layers, card.shape)
    except InvalidRequest as error:
        raise Mismatch(
            f"the card of probe {path} names {error.message}",
            remedy=f"{error.remedy}, or train the probe again",
        ) from error


def _built(card: ProbeCard, tensors: dict[str, Tensor]) -> Probe:
    """The probe with these weights. Raises: RuntimeError, KeyError or IndexError when they do not match the card."""
    hidden_sizes = len(tensors["network.0.weight"]), len(tensors["network.2.weight"])
    probe = Probe(num_features(card.features, card.layers, card.shape), hidden_sizes)
    probe.load_state_dict(tensors)
    return probe


def _card(fields: object) -> ProbeCard:
    """Parse a card. Raises: ValueError in one line when the fields are invalid."""
    try:
        card = _CARD.validate_python(fields)
    except ValidationError as error:
        raise ValueError(first_error(error, "the card")) from None
    if not all(0 < size <= limit for size, limit in zip(card.shape, MAX_SHAPE, strict=True)):
        raise ValueError(f"no states have the shape {card.shape[0]} x {card.shape[1]}")
    return card
