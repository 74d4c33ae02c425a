"""Folders, devices and links where a file should be: one clear error, whatever reads it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from semspec.decoding.likelihood.calibration import load_calibration
from semspec.decoding.retrieval.datastore import Datastore
from semspec.errors import Mismatch
from semspec.probes.probe import load_probe
from semspec.release import load_release
from semspec.stack import BUNDLED_PAIR


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def looped(path: Path) -> None:
    path.symlink_to(path.name)


READERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "pair.json": (load_release, "cannot read release"),
    "draft.json": (lambda probes: load_probe(probes / "draft.safetensors"), "cannot read probe"),
    "draft.safetensors": (
        lambda probes: load_probe(probes / "draft.safetensors"),
        "cannot read probe",
    ),
    "likelihood.json": (
        lambda probes: load_calibration(probes / "likelihood.json"),
        "cannot read likelihood calibration",
    ),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("put", [Path.mkdir, endless, looped])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str, put: Callable[[Path], None]) -> None:
    probes = shutil.copytree(BUNDLED_PAIR / "probes", tmp_path / "probes")
    (probes / name).unlink()
    put(probes / name)
    read, said = READERS[name]
    with pytest.raises(Mismatch, match=said):
        read(probes)


def test_unreadable_card_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "card.json").write_text("{}")

    def denied(path: Path, encoding: str) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", denied)
    with pytest.raises(Mismatch, match=r"damaged: card.json: .*Permission denied"):
        Datastore.load(tmp_path)
