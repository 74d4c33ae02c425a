"""A named pair from its GGUF files to an answer, through all processes."""

from pathlib import Path

import pytest
from gguf import GGMLQuantizationType

from semspec.files import file_digest
from semspec.pairs import NamedPair, PairFile, locate
from semspec.stack import StackConfig
from tests.helpers.checkpoints import save_spelling_checkpoint
from tests.helpers.ggufs import save_gguf
from tests.helpers.stack import served

pytestmark = pytest.mark.slow


async def test_named_pair_is_served_packed_from_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source, models = save_spelling_checkpoint(tmp_path / "source"), tmp_path / "models"
    models.mkdir()
    files = {}
    for role in ("draft", "target"):
        file = save_gguf(models / f"{role}.gguf", source, GGMLQuantizationType.Q8_0)
        files[role] = PairFile(
            f"a/{role}-GGUF", f"{role}.gguf", file_digest(file), file.stat().st_size
        )
    pair = NamedPair(
        "small",
        "one drafts for itself",
        "MIT",
        **files,
        settings={"dtype": "packed"},
        memory_bytes=None,
        measured=(),
    )
    config = StackConfig.of_named(pair, locate(pair, models, pytest.fail))
    async with served(config) as running:
        listed = (await running.http.get("/v1/models")).json()["data"]
        assert [model["id"] for model in listed if ":" not in model["id"]] == ["small"]
        body = {
            "model": "small:token-level",
            "max_tokens": 8,
            "temperature": 0,
            "messages": [{"role": "user", "content": "Hi"}],
        }
        answers = [
            await running.http.post(
                "/v1/chat/completions", json=body | {"model": f"small:{strategy}"}
            )
            for strategy in ("target", "token-level")
        ]
        texts = [answer.json()["choices"][0]["message"]["content"] for answer in answers]
    assert texts[0] == texts[1] != ""
