"""Engines over the tiny checkpoints."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from semspec.engine.torch_engine import TorchEngine
from semspec.types import Writer
from tests.engine.support import Load


@pytest.fixture(params=["qwen2", "llama"])
def checkpoint(request: pytest.FixtureRequest, checkpoints: dict[str, Path]) -> Path:
    return checkpoints[request.param]


@pytest.fixture
def folder(checkpoints: dict[str, Path], tmp_path: Path) -> Path:
    """Return a Llama checkpoint that a test may change."""
    return Path(shutil.copytree(checkpoints["llama"], tmp_path / "model"))


@pytest.fixture
async def load() -> AsyncIterator[Load]:
    """Loads engines, which are closed after the test."""
    engines: list[TorchEngine] = []

    def loaded(folder: Path, writer: Writer = Writer.TARGET, **options: Any) -> TorchEngine:
        engines.append(TorchEngine.load(str(folder), writer=writer, device="cpu", **options))
        return engines[-1]

    yield loaded
    for engine in engines:
        await engine.aclose()


@pytest.fixture
async def engine(checkpoint: Path, load: Load) -> TorchEngine:
    return load(checkpoint)


@pytest.fixture
async def uncached(checkpoint: Path, load: Load) -> TorchEngine:
    """The same model without a prefix cache: every call recomputes its whole context."""
    return load(checkpoint, cache_bytes=0)
