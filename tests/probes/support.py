"""Small probes, and states for them."""

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from semspec.probes.probe import FeatureSet, LayerSet, Probe, ProbeCard, num_features, save_probe
from semspec.probes.verifier import ProbeVerifier
from semspec.types import SURPRISAL_FEATURES, Segmentation, SegmentScore, States

SHAPE = (3, 4)


def card(
    model: str, features: FeatureSet = "states", layers: LayerSet = "all", **others: Any
) -> ProbeCard:
    segmentations = (Segmentation.PARAGRAPH,)
    return ProbeCard(
        model,
        f"{model}-fingerprint",
        "tok",
        SHAPE,
        features,
        layers,
        segmentations,
        "cross",
        "d",
        **others,
    )


def save(path: Path, probe_card: ProbeCard) -> Path:
    torch.manual_seed(0)
    save_probe(
        Probe(num_features(probe_card.features, probe_card.layers, probe_card.shape)),
        probe_card,
        path,
    )
    return path


def states(fingerprint: str, value: float = 0.5, shape: tuple[int, int] = SHAPE) -> States:
    return States(struct.pack("<f", value) * (shape[0] * shape[1]), shape, fingerprint)


def spoilt(good: States, value: float) -> States:
    """With another last number."""
    return replace(good, data=good.data[:-4] + struct.pack("<f", value))


def reading(fingerprint: str, value: float = 0.5) -> SegmentScore:
    return SegmentScore(states(fingerprint, value), (0.1,) * len(SURPRISAL_FEATURES), 5, 1.0)


QUESTION = [states("draft-fingerprint")], [reading("target-fingerprint")]
"""What the verifier judges: one segment of the models of `card("draft")` and `card("target")`."""


def save_pair(folder: Path, draft: ProbeCard, target: ProbeCard) -> None:
    save(folder / "draft.safetensors", draft)
    save(folder / "target.safetensors", target)


def load(folder: Path, **options: Any) -> ProbeVerifier:
    return ProbeVerifier.load(folder, **options)


def load_with(alternatives: Path) -> ProbeVerifier:
    save_pair(alternatives.parent, card("draft"), card("target"))
    return load(alternatives.parent)
