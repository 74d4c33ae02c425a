"""The self-test: a sound engine passes, a planted fault ends the start with the reason."""

from functools import partial
from typing import Any

import pytest

from semspec.engine.selftest import self_test
from semspec.engine.steps import Prefix, PrefixCache
from semspec.engine.transformers_engine import TransformersEngine
from semspec.errors import Mismatch
from semspec.rpc.server import ServiceServer
from semspec.rpc.servicers import TargetServicer
from tests.rpc.fakes import settings

TEST = partial(self_test, device="cpu", dtype="auto")


async def test_sound_engine_passes_in_a_line(engine: TransformersEngine, uncached: TransformersEngine) -> None:
    assert "states agree to" in await TEST(engine) and "512 tokens read" in await TEST(uncached)


async def test_broken_cache_ends_the_start(engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoilt(self: PrefixCache, *what: Any, take: Any = PrefixCache.take) -> Prefix:
        prefix: Prefix = take(self, *what)
        if prefix.tokens:
            prefix.kv.stretch(0, len(prefix.tokens)).mul_(1.01)  # type: ignore[union-attr]
        return prefix

    monkeypatch.setattr(PrefixCache, "take", spoilt)
    server = ServiceServer(TargetServicer(lambda: engine, TEST), settings())
    with pytest.raises(Mismatch, match=r"self-test: states scored by .* are not those written: error .*; report it"):
        await server.load()
