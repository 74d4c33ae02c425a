"""Folders, devices and links where a file should be: one clear error, whatever reads it."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from semspec.errors import Mismatch
from semspec.likelihood import load_calibration
from semspec.probes.probe import load_probe
from semspec.retrieval.datastore import Datastore
from semspec.stack import BUNDLED_PAIR, StackConfig, StackError

PROBES = BUNDLED_PAIR / "probes"


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def looped(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize("put", [Path.mkdir, endless, looped])
def test_serving_options_that_are_no_file_are_refused(tmp_path: Path, put: Callable[[Path], None]) -> None:
    probes = shutil.copytree(PROBES, tmp_path / "probes")
    (probes / "serving.json").unlink()
    put(probes / "serving.json")
    config = replace(StackConfig.of_pair(BUNDLED_PAIR), target_probe=probes / "target.safetensors")
    with pytest.raises(StackError, match=r"serving.json is no file"):
        config.read_serving()


@pytest.mark.parametrize("name", ["draft.json", "draft.safetensors"])
@pytest.mark.parametrize("put", [Path.mkdir, endless, looped])
def test_probe_that_is_no_file_is_refused(tmp_path: Path, name: str, put: Callable[[Path], None]) -> None:
    probes = shutil.copytree(PROBES, tmp_path / "probes")
    (probes / name).unlink()
    put(probes / name)
    with pytest.raises(Mismatch, match="cannot read probe"):
        load_probe(probes / "draft.safetensors")


@pytest.mark.parametrize("put", [Path.mkdir, endless, looped])
def test_calibration_that_is_no_file_is_refused(tmp_path: Path, put: Callable[[Path], None]) -> None:
    put(tmp_path / "likelihood.json")
    with pytest.raises(Mismatch, match="cannot read likelihood calibration"):
        load_calibration(tmp_path / "likelihood.json")


def test_datastore_whose_card_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "card.json").write_text("{}")

    def denied(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", denied)
    with pytest.raises(Mismatch, match=r"damaged: card.json: .*Permission denied"):
        Datastore.load(tmp_path)
