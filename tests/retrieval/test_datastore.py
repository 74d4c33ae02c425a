"""Datastores on disk: whole or refused in one line."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from semspec.decoding.retrieval.datastore import Datastore
from semspec.errors import Mismatch
from tests.retrieval.support import DOCUMENTS, STATES, TARGET, write


def test_written_datastore_is_read_back(tmp_path: Path) -> None:
    card = write(tmp_path, TARGET, DOCUMENTS)
    datastore = Datastore.load(tmp_path)
    assert datastore.card == card and card.num_tokens == 40 and card.layer is None
    assert datastore.static.match("\x0a\x0b", 2).continuations == ("\x0c\x0d",)
    assert datastore.neighbours is None


def test_neighbours_are_those_of_the_state(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    card = write(tmp_path, TARGET, DOCUMENTS, STATES)
    datastore = Datastore.load(tmp_path)
    assert (card.layer, card.num_entries) == (1, 40)
    assert datastore.neighbours is not None
    assert [datastore.neighbours.near(state)[0] for state in STATES] == list(range(40))


def test_quantised_neighbours_are_near(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    monkeypatch.setattr("semspec.decoding.retrieval.datastore.LEAST_QUANTISED", 1000)
    states = np.random.default_rng(1).normal(size=(6000, 64)).astype(np.float32)
    write(tmp_path, TARGET, [list(range(5999))], states)
    neighbours = Datastore.load(tmp_path).neighbours
    assert neighbours is not None
    assert sum(place in neighbours.near(states[place]) for place in range(0, 6000, 60)) >= 90


def test_another_build_replaces_the_datastore_and_its_files(tmp_path: Path) -> None:
    first = write(tmp_path, TARGET, DOCUMENTS)
    second = write(tmp_path, TARGET, [[1, 2, 3]])
    assert Datastore.load(tmp_path).card == second and first.digest != second.digest
    assert {path.name for path in tmp_path.iterdir()} == {"card.json", *second.files.values()}


def changed_card(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "card.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def tokens_file(folder: Path) -> Path:
    [path] = folder.glob("tokens-*")
    return path


def flip(folder: Path) -> None:
    path = tokens_file(folder)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (shutil.rmtree, "does not exist"),
        (lambda folder: (folder / "card.json").unlink(), "half-built"),
        (lambda folder: (folder / "card.json").write_text("{"), "damaged"),
        (lambda folder: (folder / "card.json").write_text("[]"), "damaged"),
        (changed_card(files={}), "damaged"),
        (changed_card(color="red"), "damaged"),
        (changed_card(format=0), "format 0"),
        (lambda folder: tokens_file(folder).unlink(), "damaged"),
        (lambda folder: os.truncate(tokens_file(folder), 9), "damaged"),
        (flip, "damaged"),
    ],
)
def test_spoiled_store_refused(spoil: Callable[[Path], None], words: str, tmp_path: Path) -> None:
    write(tmp_path, TARGET, DOCUMENTS)
    spoil(tmp_path)
    with pytest.raises(Mismatch, match=words) as refusal:
        Datastore.load(tmp_path)
    assert str(tmp_path) in str(refusal.value) and "semspec train datastore" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_any_change_of_the_card_is_another_name(tmp_path: Path) -> None:
    card = write(tmp_path, TARGET, DOCUMENTS)
    changed = (
        replace(card, model="m"), replace(card, tokenizer="t"), replace(card, layer=7), replace(card, num_tokens=1),
        replace(card, data="d"),
    )  # fmt: skip
    assert len({card.digest, *(one.digest for one in changed)}) == 1 + len(changed)


KILLED = """
import os, signal, sys
from pathlib import Path
from semspec.decoding.retrieval import datastore
from tests.retrieval.support import TARGET, write
replace, left = Path.replace, [int(sys.argv[2])]
def replacing(path, name):
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    return replace(path, name)
Path.replace = replacing
write(Path(sys.argv[1]), TARGET, [[7, 8, 9]])
"""


@pytest.mark.parametrize("num_files", [0, 1])
def test_killed_build_leaves_the_datastore_before(tmp_path: Path, num_files: int) -> None:
    before = write(tmp_path, TARGET, DOCUMENTS)
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), str(num_files)])
    assert killed.returncode == -signal.SIGKILL
    assert Datastore.load(tmp_path).card == before
    after = write(tmp_path, TARGET, [[7, 8, 9]])
    assert {path.name for path in tmp_path.iterdir()} == {"card.json", *after.files.values()}
