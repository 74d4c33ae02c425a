"""Models of the Hugging Face hub: downloaded with progress, and what is said where that cannot be."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from semspec.engine import hub
from semspec.engine.checkpoint import model_fingerprint
from semspec.errors import Mismatch
from semspec.stack import BUNDLED_PAIR
from tests.hub import serving, use

DRAFT = BUNDLED_PAIR / "draft"


@pytest.fixture(autouse=True)
def _hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "huge").mkdir()
    (tmp_path / "huge" / "model.safetensors").touch()
    with serving({"a/draft": DRAFT, "a/gated": None, "a/huge": tmp_path / "huge"}) as endpoint:
        use(endpoint, monkeypatch)
        yield


def test_model_is_downloaded_once_and_needs_no_hub_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "TELL_EVERY_S", 0)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1 << 16)
    told: list[str] = []
    folder = hub.fetch("a/draft", tell=told.append)
    assert model_fingerprint(folder) == model_fingerprint(str(DRAFT))
    assert told[0] == "downloading a/draft: 1.5 MB" and "of 1.5 MB, 00:0" in told[-1]
    use("http://127.0.0.1:1", monkeypatch)
    assert hub.fetch("a/draft", tell=pytest.fail) == folder


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("a/gated", "a/gated is gated; ask for access at http://.*/a/gated, and log in"),
        ("a/nothing", "the hub has no a/nothing; correct the name"),
        ("no name", "the hub has no no name; correct the name"),
        ("a/huge", r"a/huge takes 100000000.0 GB in .*/cache, where .* are free; make room, or set HF_HOME"),
    ],
)
def test_model_that_cannot_be_had_is_refused_with_the_remedy(model: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(Mismatch, match=f"^{said}"):
        hub.fetch(model)
    assert not list(tmp_path.glob("cache/*/snapshots"))
