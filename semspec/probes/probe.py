"""The probe: a network of three layers that maps the states of a segment to its semantic probability."""

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
    """Return the row indices of `layers`. Raises: InvalidRequest when the states have no such rows."""
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
            f"there are no layers {layers!r}: the states have layers 0 to {num_layers_plus_one - 1}",
            "layers",
            remedy='name some of these layers, "all" or "last"',
        )
    return layers


def num_features(features: FeatureSet, layers: LayerSet, shape: tuple[int, int]) -> int:
    """Return the number of features for states of `shape` `(num_layers + 1, hidden_size)`."""
    num_states = 0 if features == "surprisal" else shape[1] * len(layer_indices(layers, shape[0]))
    return num_states + (0 if features == "states" else len(SURPRISAL_FEATURES))


PROBE_FORMAT = 2
"""Format of an artifact. In format 2, labels leave out the judged segment, distinguish ends of turns from boundaries,
and contain no truncated segments. A card that states no format has format 1."""


def card_format(fields: object) -> object:
    """Return the format that a card states."""
    return fields.get("format", 1) if isinstance(fields, dict) else None


HIDDEN_SIZES = (256, 64)
MAX_SHAPE = 10_000, 1_000_000
"""Upper limits of a card's shape, above any model's, because it determines how much memory is allocated."""
LEAST_PROBABILITY = 1e-4
"""Lower limit of draft probabilities, by which target probabilities are divided: 0 would accept every segment."""

CalibrationKind = Literal["none", "temperature"]


@dataclass(frozen=True, slots=True)
class ProbeCard:
    """Description of a probe and its training: the JSON file next to its weights."""

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
    """A "temperature" is part of the last layer's weights."""
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
        """Return semantic probabilities in [0, 1], `[num_samples]`, of features `[num_samples, num_inputs]`."""
        return torch.sigmoid(self.network((features - self.mean) / self.scale)[..., 0])


def save_probe(
    probe: Probe, card: ProbeCard, path: Path, weights_dtype: torch.dtype = torch.float32
) -> None:
    """Write `path` (safetensors) and its card (`.json` next to it), each atomically.

    `weights_dtype` is the dtype of the network. Scaling stays fp32, because fp16 cannot represent a feature with mean
    1000 and standard deviation 0.1, as in large models.
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
    """Load the card of the artifact `path`. Raises: Mismatch when it is missing, damaged or of another format."""
    with _readable(path):
        fields = read_json(path.with_suffix(".json"))
        if isinstance(fields, dict) and card_format(fields) != PROBE_FORMAT:
            raise Mismatch(
                f"probe {path} has format {card_format(fields)!r}, but this build serves format {PROBE_FORMAT}",
                remedy="train it "
                "again with `semspec train run` and another `output` "
                "(the bundled pair's: `--config examples/demo/semspec_demo/probes.yaml`)",
            )
        return _parse_card(fields)


def load_probe(path: Path) -> Artifact:
    """Load an artifact.

    Raises: Mismatch when it is missing, damaged, or of another format or state convention, or has other weights than
    its card states.
    """
    card = load_card(path)
    with _readable(path):
        data = regular(path).read_bytes()
        tensors = load(data)
    if card.weights_digest != (digest := _digest(data)):
        raise Mismatch(
            f"probe {path} has the digest {digest}, but its card states {card.weights_digest or 'none'}",
            remedy="fetch both files again, or train the probe again",
        )
    _check(card, path)
    try:
        probe = _build(card, {name: value.float() for name, value in tensors.items()})
    except (RuntimeError, KeyError, IndexError) as error:
        raise Mismatch(
            f"probe {path} has another size than its card states", remedy="train it again"
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
    """Raises: Mismatch in place of any error of the block about a file that is missing or damaged."""
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
    """Raises: Mismatch when this build cannot serve the probe of a card."""
    if card.state_convention != STATE_CONVENTION:
        raise Mismatch(
            f"probe {path} is for states {card.state_convention!r}, but this build serves {STATE_CONVENTION!r}",
            remedy="retrain it",
        )
    if re.fullmatch("[0-9a-f]{16}", card.fingerprint):
        raise Mismatch(
            f"probe {path} names its model by {card.fingerprint}, a fingerprint by an earlier definition that covered "
            f"only a part of the weights (now {FINGERPRINT}:...)",
            remedy="train it again with `semspec train run`, or fetch it again",
        )
    if card.features != "states" and card.surprisal_features != SURPRISAL_FEATURES:
        raise Mismatch(
            f"probe {path} uses other surprisal statistics than this build computes",
            remedy="retrain it",
        )
    try:
        num_features(card.features, card.layers, card.shape)
    except InvalidRequest as error:
        raise Mismatch(
            f"the card of probe {path} is invalid: {error.message}",
            remedy=f"{error.remedy}, or train the probe again",
        ) from error


def _build(card: ProbeCard, tensors: dict[str, Tensor]) -> Probe:
    """Build the probe. Raises: RuntimeError, KeyError or IndexError when the weights do not match the card."""
    hidden_sizes = len(tensors["network.0.weight"]), len(tensors["network.2.weight"])
    probe = Probe(num_features(card.features, card.layers, card.shape), hidden_sizes)
    probe.load_state_dict(tensors)
    return probe


def _parse_card(fields: object) -> ProbeCard:
    """Parse a card. Raises: ValueError in one line when a field is invalid."""
    try:
        card = _CARD.validate_python(fields)
    except ValidationError as error:
        raise ValueError(first_error(error, "the card")) from None
    if not all(0 < size <= limit for size, limit in zip(card.shape, MAX_SHAPE, strict=True)):
        raise ValueError(f"the shape {card.shape[0]} x {card.shape[1]} is not one of states")
    return card
