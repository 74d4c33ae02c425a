"""The real pair behind a gateway, started once for the folder."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.real.support import (
    DRAFT,
    TARGET,
    RealPair,
    real_config,
    real_model,
    real_pair,
    save_release,
)


@pytest.fixture(scope="package")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release of the pair with a made-up calibration of `likelihood`."""
    folder = tmp_path_factory.mktemp("release")
    return save_release(folder, real_model(DRAFT), real_model(TARGET), strategy="target")


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def real(release: Path) -> AsyncIterator[RealPair]:
    async with real_pair(real_config(release)) as real:
        yield real
