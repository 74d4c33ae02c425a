"""Fitting: from memory or from disk, projected or not, served or not: the same probabilities."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from scipy.special import expit
from torch import nn

from semspec.errors import InvalidRequest, Mismatch
from semspec.probes.probe import Probe, ProbeCard, load_probe, save_probe
from semspec.probes.verifier import ProbeVerifier
from semspec.training.data.pair import to_disk
from semspec.training.trainer.fit import fit, predict
from semspec.training.trainer.probes import calibrate
from semspec.training.trainer.recipe import FitRecipe, Role
from semspec.training.trainer.reduction import fit_reduction
from semspec.training.trainer.states import BATCHES_AHEAD, FeatureSource, StateStore
from semspec.types import Segmentation, SegmentScore, States
from tests.training.samples import (
    DRAFT_SHAPE,
    HIDDEN_SIZE,
    NUM_LAYERS,
    QUICK,
    WIDTH,
    Data,
    Watched,
    write_samples,
)

pytestmark = pytest.mark.slow
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return Data(tmp_path_factory.mktemp("data") / "samples")


def same(one: Probe, other: Probe) -> bool:
    own, others = one.state_dict(), other.state_dict()
    return own.keys() == others.keys() and all(torch.equal(own[name], others[name]) for name in own)


@pytest.mark.parametrize("projection", [None, 16])
def test_fit_learns_a_probability(tmp_path: Path, projection: int | None) -> None:
    data = Data(tmp_path / "samples", 400)
    recipe = FitRecipe(batch_size=64, projection=projection, device="cpu")
    error = np.square(
        data.predict(data.fit(recipe)[0], recipe) - data.wanted()[data.rows("test")]
    ).mean()
    assert error < 0.35 * data.wanted().var()


@pytest.mark.parametrize("projection", [None, WIDTH])
def test_few_batches(data: Data, monkeypatch: pytest.MonkeyPatch, projection: int | None) -> None:
    monkeypatch.setattr("semspec.training.trainer.reduction.CHUNK_BYTES", 1)  # the smallest chunks
    recipe = QUICK.model_copy(update={"projection": projection})
    source = Watched(data.store, "target", *recipe.inputs("target"))
    rows = data.rows("train"), data.rows("validation")
    fit(source, data.wanted(), data.labels, *rows, recipe)
    assert 0 < source.most <= (BATCHES_AHEAD + 1) * recipe.batch_size < len(rows[0])


def test_projected_fit_does_not_depend_on_memory(data: Data) -> None:
    recipes = [
        QUICK.model_copy(update={"projection": WIDTH, "memory_gib": size}) for size in (1.0, 1e-9)
    ]
    (one, history), (other, others) = (data.fit(recipe) for recipe in recipes)
    assert same(one, other) and history == others


@pytest.mark.parametrize("features", ["states", "states+surprisal"])
def test_folded_probe_is_the_projected_one(data: Data, features: str) -> None:
    recipe = QUICK.model_copy(update={"features": features, "projection": WIDTH})
    source, rows = data.source(recipe), data.rows("train")
    reduction = fit_reduction(source, data.labels, rows, WIDTH, CPU)
    small, wide = Probe(reduction.num_outputs), Probe(source.num_features)
    parameters = {f"network.{name}": value for name, value in small.network.state_dict().items()}
    weight, bias = reduction.fold(parameters["network.0.weight"], parameters["network.0.bias"])
    parameters |= {"network.0.weight": weight, "network.0.bias": bias}
    wide.load_state_dict(parameters | {"mean": reduction.mean, "scale": reduction.scale})
    features_of_rows = source.read(data.labels, rows)
    unfolded = torch.sigmoid(small.network(reduction(features_of_rows))[..., 0])
    assert torch.allclose(wide(features_of_rows), unfolded, atol=1e-5)
    assert unfolded.std() > 0.001


def test_scaling_and_projection_make_unit_features(data: Data) -> None:
    recipe = QUICK.model_copy(update={"features": "states"})
    source, rows = data.source(recipe), data.rows("train")
    plain, projected = (
        fit_reduction(source, data.labels, rows, projection, CPU) for projection in (None, WIDTH)
    )
    features = source.read(data.labels, rows)
    torch.testing.assert_close(plain.mean, features.mean(0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(plain.scale, features.std(0) + 1e-3, rtol=0, atol=0.02)
    outputs = projected(source.read(data.labels, rows))
    assert outputs.shape == (len(rows), NUM_LAYERS * WIDTH)
    torch.testing.assert_close(outputs.std(0), torch.ones(NUM_LAYERS * WIDTH), rtol=0, atol=0.01)


def test_fit_stops_when_validation_no_longer_improves(data: Data) -> None:
    recipe = QUICK.model_copy(update={"num_epochs": 60, "patience": 2, "learning_rate": 0.01})
    _, history = data.fit(recipe)
    assert 3 <= len(history) < 60 and history.index(min(history)) == len(history) - 3


def test_global_random_state_is_neither_used_nor_changed(data: Data) -> None:
    torch.manual_seed(1)
    (one, _), drawn = data.fit(), torch.rand(1)
    torch.manual_seed(1)
    assert torch.rand(1) == drawn
    assert same(one, data.fit()[0])


def test_what_cannot_be_fitted_is_refused_with_the_remedy(data: Data) -> None:
    rows, none = data.rows("train"), np.empty(0, dtype=np.int64)
    constant = np.full(len(data.labels), 0.5, dtype=np.float32)
    source = data.source()
    diverging = QUICK.model_copy(update={"learning_rate": 1e30})
    for wanted, train, validation, recipe, words in (
        (constant, rows, rows, QUICK, "nothing to learn: add questions"),
        (data.wanted(), none, rows, QUICK, r"no train segments: .*shares"),
        (data.wanted(), rows, none, QUICK, r"raise shares\.validation"),
        (data.wanted(), rows, rows, diverging, r"lower probes\.learning_rate"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            fit(source, wanted, data.labels, train, validation, recipe)
    with pytest.raises(Mismatch, match="features"):
        predict(Probe(3), source, data.labels, rows)


def test_states_beyond_float16_are_refused_with_the_remedy(tmp_path: Path) -> None:
    labels = write_samples(tmp_path / "samples", 12, 1, torch.float32)
    path = tmp_path / "samples" / "00000.safetensors"
    tensors = load_file(path)
    tensors["target_states"][3, 1, 1] = torch.inf
    save_file(tensors, path)
    source = FeatureSource(StateStore(tmp_path / "samples"), "target", "states", "all")
    with pytest.raises(InvalidRequest, match="beyond the range of float16"):
        fit(source, labels.target_probability, labels, np.arange(90), np.arange(6), QUICK)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_large_feature_is_within_two_deviations(tmp_path: Path, dtype: torch.dtype) -> None:
    labels = write_samples(tmp_path / "samples", 60, 1, torch.float32)
    path = tmp_path / "samples" / "00000.safetensors"
    tensors = load_file(path)
    served = tensors["target_states"]
    served[:, 1, 2] = torch.normal(
        1000.0, 0.1, served[:, 1, 2].shape, generator=torch.Generator().manual_seed(1)
    )
    save_file(tensors | {"target_states": served.to(dtype)}, path)
    source = FeatureSource(StateStore(tmp_path / "samples"), "target", "states", (1,))
    reduction = fit_reduction(
        source, replace(labels, num_tokens=labels.num_tokens * 64), np.arange(480), None, CPU
    )
    assert float(reduction(served[:, 1])[:, 2].abs().max()) <= 2


def test_states_that_float16_cannot_hold_are_kept_in_float32_or_refused() -> None:
    large = torch.tensor([1.0, 1e5])
    assert to_disk(large).equal(large) and to_disk(large[:1]).dtype is torch.float16
    with pytest.raises(InvalidRequest, match="states are not finite"):
        to_disk(large / 0)


def last_layer(probe: Probe) -> nn.Linear:
    layer = probe.network[-1]
    assert isinstance(layer, nn.Linear)
    return layer


def test_temperature_finds_the_scale_and_shift_put_in() -> None:
    generator = np.random.default_rng(0)
    logits = generator.normal(0, 2, 4000)
    predicted, label = (expit(x).astype(np.float32) for x in (logits, 0.5 * logits - 0.7))
    probe = Probe(1)
    before = {name: value.clone() for name, value in last_layer(probe).named_parameters()}
    after = dict(last_layer(calibrate(probe, predicted, label, "temperature")).named_parameters())
    torch.testing.assert_close(after["weight"], 0.5 * before["weight"], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(after["bias"], 0.5 * before["bias"] - 0.7, rtol=1e-3, atol=1e-3)
    assert torch.equal(last_layer(probe).bias, before["bias"]), "the probe itself is left as it is"


def test_temperature_never_turns_the_order_round() -> None:
    predicted = np.linspace(0.1, 0.9, 50, dtype=np.float32)
    probe = Probe(1)
    calibrated = calibrate(probe, predicted, 1 - predicted, "temperature")
    assert (last_layer(calibrated).weight / last_layer(probe).weight > 0).all()


def test_calibration_without_segments_is_refused_with_the_remedy() -> None:
    values = np.full(5, 0.3, dtype=np.float32)
    for some in (values, values[:0]):
        with pytest.raises(InvalidRequest, match=r"shares\.calibration"):
            calibrate(Probe(1), some, some, "temperature")
    assert calibrate(probe := Probe(1), values, values, "none") is probe


async def test_verifier_serves_what_was_fitted(data: Data, tmp_path: Path) -> None:
    """Layers (0, 2) of the target, the last of the draft, a projection and a calibration: none of it shows."""
    recipe = QUICK.model_copy(
        update={"layers": (0, 2), "draft_layers": "last", "projection": WIDTH}
    )
    shapes: dict[Role, tuple[int, int]] = {
        "target": (NUM_LAYERS, HIDDEN_SIZE),
        "draft": DRAFT_SHAPE,
    }
    wanted, sent = dict[Role, NDArray[np.float32]](), dict[Role, list[States]]()
    rows = data.rows("test", "draft")
    for role, shape in shapes.items():
        probe, _ = data.fit(recipe, role)
        last_layer(probe).weight.mul_(4)  # far too sure, and too high
        last_layer(probe).bias.mul_(4).add_(1.5)
        label = data.wanted(role)[data.rows("calibration", role)]
        probe = calibrate(
            probe, data.predict(probe, recipe, "calibration", role), label, "temperature"
        )
        features, layers = recipe.inputs(role)
        card = ProbeCard(
            role, role, "tok", shape, features, layers, (Segmentation.PARAGRAPH,), "cross", "d"
        )
        save_probe(
            probe, replace(card, calibration="temperature"), tmp_path / f"{role}.safetensors"
        )
        wanted[role] = predict(probe, data.source(recipe, role=role), data.labels, rows, "cpu")
        states = FeatureSource(data.store, role, "states", "all").read(data.labels, rows)
        sent[role] = [States(one.numpy().tobytes(), shape, role) for one in states]
    verifier = ProbeVerifier.load(tmp_path)
    surprisal = (
        FeatureSource(data.store, "target", "surprisal", "all").read(data.labels, rows).tolist()
    )
    scores = [
        SegmentScore(one, tuple(own), 1, 1.0)
        for one, own in zip(sent["target"], surprisal, strict=True)
    ]
    judgements = await verifier.judge(sent["draft"], scores)
    # Standardisation is folded into the first layer: the last digits differ.
    np.testing.assert_allclose(
        [one.target_probability for one in judgements], wanted["target"], atol=1e-5
    )
    np.testing.assert_allclose(
        [one.draft_probability for one in judgements], wanted["draft"], atol=1e-5
    )


def test_half_precision_of_the_weights_leaves_the_scaling_whole(tmp_path: Path) -> None:
    probe = Probe(HIDDEN_SIZE)
    probe.mean.fill_(1000.3)
    probe.scale.fill_(0.1)
    card = ProbeCard(
        "m", "m", "t", (1, HIDDEN_SIZE), "states", "all", (Segmentation.PARAGRAPH,), "own", "d"
    )
    save_probe(probe, card, tmp_path / "p.safetensors", torch.float16)
    loaded = load_probe(tmp_path / "p.safetensors").probe
    features = 1000.3 + 0.1 * torch.randn(
        50, HIDDEN_SIZE, generator=torch.Generator().manual_seed(0)
    )
    torch.testing.assert_close(loaded(features), probe(features), rtol=0, atol=1e-3)
    assert (tmp_path / "p.safetensors").stat().st_size < 2 * sum(
        p.numel() for p in probe.parameters()
    ) + 2000
