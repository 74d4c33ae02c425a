"""The gateway of tests/gateway and services of real engines, to be asked by those who mean them no good."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from semspec.rpc.servicers import DraftServicer, TargetServicer, VerifierServicer
from tests.decoding.engines import engines
from tests.gateway.conftest import gateway, redis, redis_url, start_gateway
from tests.rpc.fakes import serving

__all__ = ["gateway", "redis", "redis_url", "start_gateway"]


@pytest.fixture
async def addresses(checkpoints: dict[str, Path], tmp_path: Path) -> AsyncIterator[dict[str, str]]:
    """Of services of real engines, with random probes."""
    async with (
        engines(checkpoints, tmp_path) as (draft, target, verifier),
        serving(DraftServicer(lambda: draft)) as drafts,
        serving(TargetServicer(lambda: target)) as targets,
        serving(VerifierServicer(lambda: verifier)) as verifiers,
    ):
        yield {"Draft": drafts.address, "Target": targets.address, "Verifier": verifiers.address}
