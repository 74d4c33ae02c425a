"""What is on the disk is whole, and says what it was made from."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from semspec.errors import Mismatch
from semspec.reporting.files import read_json, replacing, write_json
from semspec.training.files import (
    DATA_FORMAT,
    StageFolder,
    check_format,
    read_rows,
    write_rows,
    write_tensors,
)

pytestmark = pytest.mark.slow


def test_broken_off_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    write_rows(path, [{"a": 1}])
    with pytest.raises(ZeroDivisionError), replacing(path) as partial:
        partial.write_text("half")
        raise ZeroDivisionError
    assert read_rows(path) == [{"a": 1}]
    assert [one.name for one in tmp_path.iterdir()] == ["rows.parquet"]


FILL = """
import resource, signal, sys, torch
from pathlib import Path
from semspec.errors import Unavailable
from semspec.training.files import {writer}
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    {writer}(Path(sys.argv[1]), {content})
except Unavailable as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("writer", "content"),
    [
        ("write_rows", "[{'a': str(i) * 9} for i in range(99_999)]"),
        ("write_tensors", "{'a': torch.ones(99_999)}"),
    ],
)
def test_full_disk_leaves_nothing(tmp_path: Path, writer: str, content: str) -> None:
    program = FILL.format(writer=writer, content=content)
    path = tmp_path / "00000.data"
    result = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True
    )
    assert "make room and run the same command again" in result.stdout, result.stderr
    assert list(tmp_path.iterdir()) == []


def test_shard_without_manifest_or_with_other_inputs_or_sizes_is_not_done(tmp_path: Path) -> None:
    folder = StageFolder(tmp_path)
    write_rows(folder.file(3, ".parquet"), [{"a": 1}])
    assert not folder.is_done(3) and folder.numbers() == []
    write_tensors(folder.file(3, ".safetensors"), {"x": torch.ones(3)})
    folder.commit(3, [".parquet", ".safetensors"], "one")
    assert folder.is_done(3, "one") and not folder.is_done(3, "two") and folder.numbers() == [3]
    path = folder.file(3, ".safetensors")
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert folder.is_done(3, "one") and folder.damaged(3) == [path.name], "of the right size"
    path.write_bytes(b"cut")
    assert not folder.is_done(3, "one")


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    folder = StageFolder(tmp_path)
    folder.claim({"samples": {"temperature": 0.6, "seed": 1}, "target": {"model": "a"}})
    folder.claim({"target": {"model": "a"}, "samples": {"seed": 1, "temperature": 0.6}})
    with pytest.raises(Mismatch, match=r"samples\.temperature: 0\.6 there, 0\.8 now\)"):
        folder.claim({"samples": {"temperature": 0.8, "seed": 1}, "target": {"model": "a"}})


def test_work_folder_of_another_format_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    folder = StageFolder(tmp_path / "samples")
    folder.claim({"a": 1})
    check_format(tmp_path)
    recipe = folder.path / "recipe.json"
    assert read_json(recipe) == {"format": DATA_FORMAT, "a": 1}
    write_json(recipe, {"a": 1})  # as before there were formats
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(Mismatch, match=r"has format 1, .* run `semspec train run`"):
        check_format(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
