"""The real pair behind a gateway, started once for the folder."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from semspec.decoding.likelihood.calibration import CalibratedModel, as_json
from semspec.engine.checkpoint import load_tokenizer, model_fingerprint, tokenizer_fingerprint
from semspec.release import Release, ReleasedModel
from tests.calibrations import made_up_calibration
from tests.real.support import (
    DRAFT,
    MIDDLE,
    NAME,
    TARGET,
    RealPair,
    real_config,
    real_model,
    real_pair,
)


@pytest.fixture(scope="package")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release of the pair with a made-up calibration of `likelihood`."""
    folder = tmp_path_factory.mktemp("release")
    draft, target = served_model(real_model(DRAFT)), served_model(real_model(TARGET))
    likelihood = made_up_calibration(calibrated_model(draft), calibrated_model(target), MIDDLE)
    (folder / "likelihood.json").write_text(json.dumps(as_json(likelihood)))
    Release(
        NAME, "1", draft, target, rule={"strategy": "target"}, likelihood=likelihood.digest
    ).save(folder)
    return folder


def served_model(folder: Path) -> ReleasedModel:
    tokenizer = tokenizer_fingerprint(load_tokenizer(str(folder)))
    return ReleasedModel(str(folder), model_fingerprint(str(folder)), tokenizer)


def calibrated_model(model: ReleasedModel) -> CalibratedModel:
    return CalibratedModel(Path(model.model).name, model.fingerprint, model.tokenizer)


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def real(release: Path) -> AsyncIterator[RealPair]:
    async with real_pair(real_config(release)) as real:
        yield real
