"""Features of labelled segments: the same numbers from memory and from disk, and never more of them than asked for."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from semspec.errors import InvalidRequest, Mismatch
from semspec.probes.probe import FeatureSet, LayerSet
from semspec.training.data.labels import Labels
from semspec.training.trainer.recipe import Role
from semspec.training.trainer.states import BATCHES_AHEAD, FeatureSource, StateStore
from tests.helpers.features import assemble
from tests.training.samples import Watched, write_samples


@pytest.fixture
def labels(tmp_path: Path) -> Labels:
    return write_samples(tmp_path / "samples")


@pytest.fixture
def store(tmp_path: Path, labels: Labels) -> StateStore:
    return StateStore(tmp_path / "samples")


@pytest.mark.parametrize(
    ("role", "features", "layers"),
    [
        ("target", "states+surprisal", "all"),
        ("target", "states", (0, 2)),
        ("target", "surprisal", "all"),
        ("draft", "states", "last"),
    ],
)
def test_gathered_features_are_those_on_disk_in_the_order_asked(
    tmp_path: Path,
    labels: Labels,
    store: StateStore,
    role: Role,
    features: FeatureSet,
    layers: LayerSet,
) -> None:
    source = FeatureSource(store, role, features, layers)
    indices = np.random.default_rng(0).permutation(np.flatnonzero(labels.by_draft))[:25]
    found = source.read(labels, indices)
    assert found.shape == (25, source.num_features) and found.dtype == torch.float32
    for place in (0, 7, 24):
        index = int(indices[place])
        tensors = load_file(tmp_path / "samples" / f"{labels.shard[index]:05d}.safetensors")
        row = labels.row[index] if role == "target" else labels.draft_row[index]
        surprisal = tensors["surprisal"][labels.row[index]][None]
        [expected] = assemble(features, layers, tensors[f"{role}_states"][row][None], surprisal)
        assert found[place].tolist() == expected.tolist()


def test_batches_read_ahead_come_in_order(labels: Labels, store: StateStore) -> None:
    source = FeatureSource(store, "target", "states+surprisal", "all")
    batches = [
        np.array(part)
        for part in np.array_split(np.random.default_rng(1).permutation(len(labels)), 9)
    ]
    for batch, rows in zip(batches, source.batches(labels, batches), strict=True):
        assert torch.equal(rows, source.read(labels, batch))


def test_reading_stops_when_the_reader_leaves(labels: Labels, store: StateStore) -> None:
    source = Watched(store, "target", "states", "all")
    batches = source.batches(labels, np.array_split(np.arange(len(labels)), 40))
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert source.most <= (BATCHES_AHEAD + 1) * 12


def test_error_while_reading_ahead_reaches_the_reader(labels: Labels, store: StateStore) -> None:
    source = FeatureSource(store, "draft", "states", "all")
    with pytest.raises(InvalidRequest, match="target-written"):
        list(source.batches(labels, [np.flatnonzero(~labels.by_draft)]))


def test_missing_shard_is_named_with_the_remedy(tmp_path: Path, labels: Labels) -> None:
    (tmp_path / "samples" / "00002.safetensors").unlink()
    source = FeatureSource(StateStore(tmp_path / "samples"), "target", "states", "all")
    with pytest.raises(Mismatch, match=r"shard 2 .* run the same command again"):
        source.read(labels, np.arange(len(labels)))


def test_unfit_folders_are_refused_with_the_remedy(tmp_path: Path, labels: Labels) -> None:
    with pytest.raises(InvalidRequest, match="run the stage"):
        StateStore(tmp_path / "nothing")
    path = tmp_path / "samples" / "00002.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(Mismatch, match="delete it"):
        StateStore(tmp_path / "samples")
