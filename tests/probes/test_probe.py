"""Probes: artifacts that refuse what they do not fit, and training that learns."""

import json
import struct
from pathlib import Path

import pytest
import torch

from semspec.core import SURPRISAL_FEATURES, Reading, Segmentation, States
from semspec.errors import InvalidRequest, Mismatch
from semspec.probes.features import FeatureSet, num_features
from semspec.probes.probe import Probe, ProbeCard, load_probe, save_probe
from semspec.probes.verifier import ProbeVerifier
from training.train import FitRecipe, fit, predict

SHAPE = (3, 4)


def card(model: str, features: FeatureSet = "states", metrics: dict[str, object] | None = None) -> ProbeCard:
    segmentations = (Segmentation.PARAGRAPH,)
    fingerprint = f"{model}-fingerprint"
    return ProbeCard(
        model, fingerprint, "tok", SHAPE, features, "all", segmentations, "cross", "d", metrics=metrics or {}
    )


def save(path: Path, probe_card: ProbeCard) -> Path:
    torch.manual_seed(0)
    save_probe(Probe(num_features(probe_card.features, probe_card.layers, probe_card.shape)), probe_card, path)
    return path


def states(fingerprint: str, value: float = 0.5, shape: tuple[int, int] = SHAPE) -> States:
    return States(struct.pack("<f", value) * (shape[0] * shape[1]), shape, fingerprint)


def reading(fingerprint: str, value: float = 0.5) -> Reading:
    return Reading(states(fingerprint, value), (0.1,) * len(SURPRISAL_FEATURES), 5, 1.0)


@pytest.fixture
def verifier(tmp_path: Path) -> ProbeVerifier:
    draft = save(tmp_path / "draft.safetensors", card("draft"))
    target = save(tmp_path / "target.safetensors", card("target", "states+surprisal"))
    return ProbeVerifier.load(draft, target)


def test_artifact_survives_a_round_trip(tmp_path: Path) -> None:
    path = save(tmp_path / "p.safetensors", card("m", metrics={"r2": 0.9}))
    artifact = load_probe(path)
    assert artifact.card == card("m", metrics={"r2": 0.9})
    torch.manual_seed(0)
    inputs = torch.randn(5, 12)
    torch.manual_seed(0)
    assert torch.equal(artifact.probe(inputs), Probe(12).eval()(inputs))


async def test_batch_of_judgements_equals_one_by_one(verifier: ProbeVerifier) -> None:
    drafts = [states("draft-fingerprint", i / 7) for i in range(7)]
    readings = [reading("target-fingerprint", i / 5) for i in range(7)]
    together = await verifier.judge(drafts, readings)
    alone = [(await verifier.judge([d], [r]))[0] for d, r in zip(drafts, readings, strict=True)]
    for one, other in zip(together, alone, strict=True):
        assert one.draft_probability == pytest.approx(other.draft_probability, abs=1e-6)
        assert one.target_probability == pytest.approx(other.target_probability, abs=1e-6)


async def test_states_of_another_model_are_refused_with_the_remedy(verifier: ProbeVerifier) -> None:
    with pytest.raises(Mismatch, match="serve that model or train a probe"):
        await verifier.judge([states("other")], [reading("target-fingerprint")])
    with pytest.raises(Mismatch, match="target probe"):
        await verifier.judge([states("draft-fingerprint")], [reading("other")])
    with pytest.raises(Mismatch, match="shape"):
        await verifier.judge([states("draft-fingerprint", shape=(2, 4))], [reading("target-fingerprint")])
    with pytest.raises(InvalidRequest):
        await verifier.judge([], [reading("target-fingerprint")])


def test_damaged_or_missing_artifacts_are_refused_with_the_remedy(tmp_path: Path) -> None:
    path = save(tmp_path / "p.safetensors", card("m"))
    with pytest.raises(Mismatch, match="demo-probes"):
        load_probe(tmp_path / "missing.safetensors")
    text = path.with_suffix(".json").read_text()
    path.with_suffix(".json").write_text(text.replace("states-v1", "states-v0"))
    with pytest.raises(Mismatch, match="states-v0"):
        load_probe(path)
    fields = json.loads(text) | {"shape": [9, 9]}
    path.with_suffix(".json").write_text(json.dumps(fields))
    with pytest.raises(Mismatch, match="size"):
        load_probe(path)
    path.with_suffix(".json").write_text(text)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(Mismatch, match="cannot read"):
        load_probe(path)


def test_draft_probe_that_wants_surprisal_is_refused(tmp_path: Path) -> None:
    draft = save(tmp_path / "draft.safetensors", card("draft", "states+surprisal"))
    target = save(tmp_path / "target.safetensors", card("target"))
    with pytest.raises(Mismatch, match="states only"):
        ProbeVerifier.load(draft, target)


def test_fit_learns_a_probability_and_stops_at_the_best_epoch() -> None:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(3000, 20, generator=generator)
    labels = torch.sigmoid(2 * inputs[:, 0] - inputs[:, 3])
    probe = fit(inputs[:2400], labels[:2400], (inputs[2400:2700], labels[2400:2700]), FitRecipe())
    error = (predict(probe, inputs[2700:]) - labels[2700:]).square().mean()
    assert error < 0.1 * labels.var()
