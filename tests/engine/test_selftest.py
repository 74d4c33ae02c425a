"""The self-test: a sound engine passes, a planted fault ends the start with the reason."""

from pathlib import Path
from typing import Any

import pytest
import torch

from semspec.engine import selftest
from semspec.engine.selftest import self_test
from semspec.engine.settings import ModelSettings
from semspec.engine.steps import Prefix, PrefixCache
from semspec.engine.torch_engine import TorchEngine
from semspec.errors import Mismatch
from semspec.rpc.server import ServiceServer
from semspec.rpc.servicers import TargetServicer
from tests.helpers.rpc import settings


@pytest.fixture
def model(checkpoint: Path) -> ModelSettings:
    return ModelSettings(model=str(checkpoint), port=0, device="cpu")


async def test_sound_engine_passes_in_a_line(
    engine: TorchEngine,
    uncached: TorchEngine,
    model: ModelSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "with plain transformers too; 128 tokens read" in await self_test(engine, model)
    monkeypatch.setattr(selftest, "REFERENCE_BYTES", 0)
    assert "with plain transformers over the same weights too; 128" in await self_test(
        uncached, model
    )


async def test_broken_cache_ends_the_start(
    engine: TorchEngine, model: ModelSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoilt(self: PrefixCache, *what: Any, take: Any = PrefixCache.take) -> Prefix:
        prefix: Prefix = take(self, *what)
        if prefix.tokens:
            prefix.kv.stretch(0, len(prefix.tokens)).mul_(1.01)  # type: ignore[union-attr]
        return prefix

    monkeypatch.setattr(PrefixCache, "take", spoilt)
    server = ServiceServer(
        TargetServicer(lambda: engine, lambda one: self_test(one, model)), settings()
    )
    with pytest.raises(Mismatch, match="self-test: states scored by"):
        await server.load()


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("layers.0.mlp.down_proj", "states scored by plain transformers"),
        ("lm_head", "log-probabilities scored by plain"),
    ],
)
async def test_bad_weight(engine: TorchEngine, model: ModelSettings, name: str, fault: str) -> None:
    [weight] = [
        value for key, value in engine.lm.model.named_parameters() if key.endswith(f"{name}.weight")
    ]
    weight.data *= 1.5
    with pytest.raises(Mismatch, match=f"self-test: {fault}"):
        await self_test(engine, model)


async def test_decoder_that_differs_from_transformers_is_refused(
    engine: TorchEngine, model: ModelSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It agrees with itself: written, scored at once and scored alone."""
    monkeypatch.setattr(selftest, "REFERENCE_BYTES", 0)
    assert engine.lm.decoder
    norm = engine.lm.decoder._rms_norm
    norm.eps, norm.cpu_eps = 0.1, torch.full((1, 1), 0.1)
    with pytest.raises(Mismatch, match="self-test: states scored by plain transformers"):
        await self_test(engine, model)


async def test_context_beyond_memory_ends_the_start_with_the_field(
    engine: TorchEngine, model: ModelSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(chunks: Any, made: Any = engine.lm.forward_step) -> Any:
        if sum(len(chunk.tokens) for chunk in chunks) > 100:
            raise torch.OutOfMemoryError("out of memory")
        return made(chunks)

    monkeypatch.setattr(engine.lm, "forward_step", step)
    with pytest.raises(Mismatch, match=r"128 tokens cannot be read: .*; lower max_context_tokens"):
        await self_test(engine, model)
