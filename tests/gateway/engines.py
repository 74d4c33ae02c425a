"""A gateway over real engines behind sockets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from semspec.engine.torch_engine import TorchEngine
from tests.helpers.checkpoints import loaded, random_probes, save_spelling_checkpoint
from tests.helpers.engines import behind_sockets
from tests.helpers.gateway import Gateway, make_settings, running_gateway

Engines = tuple[TorchEngine, TorchEngine]


@asynccontextmanager
async def served(engines: Engines, folder: Path, **settings: Any) -> AsyncIterator[Gateway]:
    """Over a draft and a target, with random probes in `folder`."""
    async with (
        behind_sockets(*engines, await random_probes(*engines, folder)) as backends,
        running_gateway(make_settings(**settings), backends) as gateway,
    ):
        yield gateway


@pytest.fixture
async def spelling(tmp_path: Path, redis_url: str) -> AsyncIterator[Gateway]:
    """Over models of random weights, which by themselves write anything."""
    model = save_spelling_checkpoint(tmp_path / "model")
    async with (
        loaded(model, model) as engines,
        served(engines, tmp_path, redis_url=redis_url) as gateway,
    ):
        yield gateway
