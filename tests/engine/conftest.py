"""Engines over the tiny checkpoints."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from semspec.engine.transformers_engine import TransformersEngine
from semspec.types import Writer


@pytest.fixture(params=["qwen2", "llama"])
def checkpoint(request: pytest.FixtureRequest, checkpoints: dict[str, Path]) -> Iterator[Path]:
    yield checkpoints[request.param]


@pytest.fixture
async def engine(checkpoint: Path) -> AsyncIterator[TransformersEngine]:
    engine = TransformersEngine.load(str(checkpoint), writer=Writer.TARGET, device="cpu")
    yield engine
    await engine.aclose()


@pytest.fixture
async def uncached(checkpoint: Path) -> AsyncIterator[TransformersEngine]:
    """The same model without a prefix cache: every call recomputes its whole context."""
    engine = TransformersEngine.load(str(checkpoint), writer=Writer.TARGET, device="cpu", cache_bytes=0)
    yield engine
    await engine.aclose()
