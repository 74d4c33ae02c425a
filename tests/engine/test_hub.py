"""Models of the Hugging Face hub: downloaded with progress, and what is said where that cannot be."""

import errno
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest
from huggingface_hub import constants, file_download

from semspec.engine import hub
from semspec.engine.checkpoint import model_fingerprint
from semspec.engine.gguf import weights_digest
from semspec.errors import Mismatch
from semspec.files import file_digest
from semspec.stack import BUNDLED_PAIR
from tests.helpers.checkpoints import save_spelling_checkpoint
from tests.helpers.ggufs import save_gguf
from tests.helpers.hub import serving, use

DRAFT = BUNDLED_PAIR / "draft"


@pytest.fixture(autouse=True)
def _hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "huge").mkdir()
    (tmp_path / "huge" / "model.safetensors").touch()
    models = {
        "a/draft": DRAFT,
        "a/gated": None,
        "a/huge": tmp_path / "huge",
        "a/files-GGUF": tmp_path / "files",
    }
    with serving(models) as endpoint:
        use(endpoint, monkeypatch)
        yield


@pytest.fixture
def gguf_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the repository a/files-GGUF, with the file model.gguf."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    (tmp_path / "files").mkdir()
    save_gguf(tmp_path / "files" / "model.gguf", save_spelling_checkpoint(tmp_path / "source"))
    (tmp_path / "files" / "model-q8.gguf").write_bytes(b"GGUF")
    return tmp_path / "files"


class FullDisk(io.RawIOBase):
    """A file on a disk that has no room for more than its first bytes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, data: Any) -> int:
        if self._file.tell() > 1 << 14:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._file.write(data)


def test_model_is_downloaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "PROGRESS_INTERVAL_S", 0)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1 << 16)
    told: list[str] = []
    folder = hub.fetch("a/draft", tell=told.append)
    assert model_fingerprint(folder) == model_fingerprint(str(DRAFT))
    assert told[0] == "downloading a/draft: 1.5 MB" and "of 1.5 MB, 00:0" in told[-1]
    use("http://127.0.0.1:1", monkeypatch)
    assert hub.fetch("a/draft", tell=pytest.fail) == folder


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("a/nothing", "the hub has no a/nothing; correct the name"),
        ("a/huge", r"a/huge needs 100000000.0 GB in .*/cache, which has .* free; make room"),
        ("a/gated:model.gguf", "a/gated:model.gguf is gated; ask for access at http://.*/a/gated"),
        ("a/files-GGUF:other.gguf", "a/files-GGUF has no file other.gguf; give the name of a file"),
        ("/no/model.gguf", "there is no file /no/model.gguf; give a GGUF file, or REPOSITORY"),
    ],
)
def test_unavailable_model_is_refused(
    gguf_hub: Path, model: str, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(Mismatch, match=f"^{reason}"):
        hub.fetch(model)
    assert not list(tmp_path.glob("cache/*/snapshots"))


def test_file_downloaded(gguf_hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = "a/files-GGUF:model.gguf"
    found = hub.look_up(model)
    assert found.missing_bytes == found.weight_bytes == (gguf_hub / "model.gguf").stat().st_size
    folder = hub.fetch(model)
    assert weights_digest(folder) == file_digest(gguf_hub / "model.gguf")
    assert [path.name for path in tmp_path.glob("cache/*/snapshots/*/*")] == ["model.gguf"]
    assert hub.look_up(model) == hub.Checkpoint(Path(folder), found.weight_bytes)
    use("http://127.0.0.1:1", monkeypatch)
    assert hub.fetch(model, tell=pytest.fail) == folder
    assert hub.fetch(str(gguf_hub / "model.gguf")) == folder  # the same digest


def test_full_disk_no_file(gguf_hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def get_until_full(url: str, file: BinaryIO, **options: Any) -> None:
        http_get(url, cast(BinaryIO, FullDisk(file)), **options)

    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1 << 14)
    http_get = file_download.http_get
    with monkeypatch.context() as patched:
        patched.setattr(file_download, "http_get", get_until_full)
        with pytest.raises(Mismatch, match=r"^no room for a/files-GGUF:model.gguf in .*/cache"):
            hub.fetch("a/files-GGUF:model.gguf")
    assert not [*tmp_path.glob("cache/*/snapshots/*/*"), *tmp_path.glob("cache/*/blobs/*")]
    assert weights_digest(hub.fetch("a/files-GGUF:model.gguf")) == file_digest(
        gguf_hub / "model.gguf"
    )
