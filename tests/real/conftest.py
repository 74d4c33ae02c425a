"""The real pair: the same files in this process and behind a gateway, each started once for the folder."""

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from semspec.decoding import Backends
from semspec.decoding.likelihood.calibration import as_json
from semspec.decoding.protocols import WithoutProbes
from semspec.release import Release, ReleasedModel
from semspec.types import ModelInfo
from tests.calibrations import calibration
from tests.checkpoints import loaded
from tests.real.support import DRAFT, DTYPE, NAME, TARGET, RealPair, real_config, real_model, real_pair
from tests.stack.support import Pair

MIDDLE = -0.9
"""Mean log-probability of a drafted segment from which it is accepted: about half of them are."""


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    """The models in this process, and a release with a made-up calibration of `likelihood`."""
    folder, draft_folder, target_folder = tmp_path_factory.mktemp("release"), real_model(DRAFT), real_model(TARGET)
    async with loaded(draft_folder, target_folder, dtype=DTYPE) as (draft, target):
        infos = await draft.info(), await target.info()
        likelihood = calibration(*infos, middle=MIDDLE)
        (folder / "likelihood.json").write_text(json.dumps(as_json(likelihood)))
        models = (released(str(path), info) for path, info in zip((draft_folder, target_folder), infos, strict=True))
        Release(NAME, "1", *models, rule={"strategy": "target"}, likelihood=likelihood.digest).save(folder)
        backends = Backends(draft, target, WithoutProbes(), likelihood=likelihood)
        yield Pair(draft_folder, target_folder, folder, backends)


def released(folder: str, info: ModelInfo) -> ReleasedModel:
    return ReleasedModel(folder, info.fingerprint, info.tokenizer)


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def real(pair: Pair) -> AsyncIterator[RealPair]:
    async with real_pair(real_config(pair.probes)) as real:
        yield real
