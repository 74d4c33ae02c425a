"""What a checkpoint says of itself: a fingerprint over every byte, and a tokenizer that works."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from semspec.engine import checkpoint
from semspec.engine.checkpoint import load_tokenizer, model_fingerprint
from semspec.engine.transformers_engine import TransformersEngine
from semspec.errors import Mismatch
from semspec.types import FINGERPRINT, Writer


@pytest.fixture
def folder(checkpoints: dict[str, Path], tmp_path: Path) -> Path:
    """A checkpoint that a test may change."""
    return Path(shutil.copytree(checkpoints["qwen2"], tmp_path / "model"))


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file, and an empty cache that keeps digests of files of any size."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(checkpoint, "LEAST_BYTES", 0)
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"weights")
    return file


def test_fingerprint_covers_every_byte(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    data = bytearray(5 << 20)
    seen = set()
    for place in (0, len(data) // 2, len(data) - 1):
        data[place] ^= 1
        (tmp_path / "model.safetensors").write_bytes(data)
        seen.add(model_fingerprint(str(tmp_path)))
    assert model_fingerprint(str(shutil.copytree(tmp_path, tmp_path / "copy"))) in seen
    assert len(seen) == 3 and all(fingerprint.startswith(f"{FINGERPRINT}:") for fingerprint in seen)


def test_digest_is_computed_once(weights: Path) -> None:
    [digest] = checkpoint.file_digests([weights])
    [entry] = checkpoint.cache_folder().iterdir()
    entry.write_text(json.dumps([*json.loads(entry.read_text())[:-1], "remembered"]))
    assert checkpoint.file_digests([weights]) == ["remembered"]
    entry.write_text("{")
    assert checkpoint.file_digests([weights]) == [digest]


def test_digest_of_a_changed_file_is_computed_again(weights: Path) -> None:
    before, times = checkpoint.file_digests([weights]), weights.stat()
    weights.write_bytes(b"WEIGHTS")
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))  # the ctime cannot be put back
    assert checkpoint.file_digests([weights]) != before


def test_digest_needs_no_writable_cache(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = checkpoint.file_digests([weights])
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert checkpoint.file_digests([weights]) == digests


@pytest.mark.parametrize(("missing", "complaint"), [("tokenizer*", "tokenizer"), ("*", "safetensors")])
def test_missing_files_are_refused_at_start(folder: Path, missing: str, complaint: str) -> None:
    for file in folder.glob(missing):
        file.unlink()
    with pytest.raises(Mismatch, match=complaint):
        TransformersEngine.load(str(folder), writer=Writer.TARGET)


NO_TOKEN_IDS: list[Any] = [{}, [{"a": 1}], "</s>", [], True, 1.5, -1]


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        *(("tokenizer.json", text, "tokenizer") for text in ("{}", "[]", '{"version": "1.0"}')),
        *(("tokenizer.json", text, "cannot load model") for text in ("{", "")),
        ("config.json", {"pad_token_id": "x"}, "cannot load model"),
        ("config.json", {"num_hidden_layers": [2]}, "cannot load model"),
        ("config.json", {"model_type": 7}, "cannot load model"),
        ("config.json", {"intermediate_size": 8}, "cannot load model"),
        ("generation_config.json", '["x"]', "cannot load model"),
        *(("generation_config.json", {"eos_token_id": eos}, "generation_config.json") for eos in NO_TOKEN_IDS),
        ("chat_template.jinja", "{% for m in messages %}{{ m.content }}", "chat template of .* malformed in line 1"),
    ],
)
def test_malformed_file_is_refused_in_one_line(folder: Path, file: str, content: Any, complaint: str) -> None:
    """`content`: the text of the file, or fields to change in it."""
    path = folder / file
    path.write_text(content if isinstance(content, str) else json.dumps(json.loads(path.read_text()) | content))
    with pytest.raises(Mismatch, match=f"(?s){complaint}") as refusal:
        TransformersEngine.load(str(folder), writer=Writer.TARGET)
    assert "\n" not in refusal.value.message


def test_chat_template_that_refuses_a_first_turn_is_served(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ raise_exception('begin with a system turn') }}")
    assert load_tokenizer(str(folder)).chat_template
