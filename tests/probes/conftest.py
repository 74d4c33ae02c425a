"""Pairs of small probes."""

from pathlib import Path

import pytest

from semspec.probes.verifier import ProbeVerifier
from tests.probes.support import card, load, save_pair


@pytest.fixture
def verifier(tmp_path: Path) -> ProbeVerifier:
    save_pair(tmp_path, card("draft"), card("target", "states+surprisal"))
    return load(tmp_path)


@pytest.fixture
def alternatives(tmp_path: Path) -> Path:
    """A folder with two pairs of probes next to the pair's own."""
    folder = tmp_path / "alternatives"
    save_pair(folder / "last-hidden", card("draft", layers="last"), card("target", layers="last"))
    save_pair(folder / "surprisal", card("draft"), card("target", "surprisal"))
    (folder / ".hidden").mkdir()
    return folder
