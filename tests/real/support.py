"""Real checkpoints: where they lie, and a pair of them served."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from semspec.decoding.likelihood.calibration import CalibratedModel, as_json
from semspec.engine.checkpoint import load_tokenizer, model_fingerprint, tokenizer_fingerprint
from semspec.release import Release, ReleasedModel
from semspec.stack import StackConfig
from tests.helpers.calibrations import made_up_calibration
from tests.helpers.processes import GENEROUS_S
from tests.helpers.stack import Json, Running, served

REAL_MODELS = "SEMSPEC_REAL_MODELS"
DRAFT, TARGET, LARGE = "smollm2-135m", "qwen-coder-0.5b", "qwen-coder-1.5b"
"""Checkpoints in the folder `REAL_MODELS`: two tokenizers, of which the last two models have one."""
DTYPE = "float32"
"""In which a repeated request has the same tokens, whatever was cached."""
NAME = "real-pair"
MIDDLE = -0.9
"""Mean log-probability of a drafted segment from which the tests' `likelihood` accepts it: about half of them."""


def real_model(name: str) -> Path:
    """Return the folder of a checkpoint; skips the test where there is none."""
    models = os.environ.get(REAL_MODELS)
    if not models or not (folder := Path(models, name)).is_dir():
        pytest.skip(f"{REAL_MODELS} names no folder with {name}")
    return folder


def save_release(folder: Path, draft: Path, target: Path, **rule: object) -> Path:
    """Save a release of these checkpoints in `folder`, with a made-up calibration of `likelihood`; return `folder`."""
    models = _released(draft), _released(target)
    likelihood = made_up_calibration(_calibrated(models[0]), _calibrated(models[1]), MIDDLE)
    (folder / "likelihood.json").write_text(json.dumps(as_json(likelihood)))
    Release(NAME, "1", *models, rule=rule, likelihood=likelihood.digest).save(folder)
    return folder


def _released(folder: Path) -> ReleasedModel:
    tokenizer = tokenizer_fingerprint(load_tokenizer(str(folder)))
    return ReleasedModel(str(folder), model_fingerprint(str(folder)), tokenizer)


def _calibrated(model: ReleasedModel) -> CalibratedModel:
    return CalibratedModel(Path(model.model).name, model.fingerprint, model.tokenizer)


def real_config(release: Path | None = None, dtype: str = DTYPE) -> StackConfig:
    """A stack of the real pair. `release`: its folder."""
    defaults = {"temperature": 0, "max_tokens": 200}
    environment = {
        "SEMSPEC_DRAFT_DTYPE": dtype,
        "SEMSPEC_TARGET_DTYPE": dtype,
        "SEMSPEC_GATEWAY_DEFAULTS": json.dumps(defaults),
        **({} if release else {"SEMSPEC_GATEWAY_MODEL_NAME": NAME}),
    }
    models = real_model(DRAFT), real_model(TARGET)
    return StackConfig(*models, release, environment=environment, start_timeout_s=GENEROUS_S)


@dataclass(frozen=True, slots=True)
class RealPair:
    """The real pair, served; a request says only what it is about."""

    running: Running

    async def send(self, path: str, **body: Any) -> Json:
        """Return the answer to a request. Raises: AssertionError when it is refused."""
        response = await self.running.http.post(path, json=body)
        assert response.status_code == 200, response.text
        answer: Json = response.json()
        return answer

    async def chat(self, question: str | list[Json], **fields: Any) -> Json:
        """Return the answer of a chat, greedy unless `fields` say otherwise."""
        return await self.send("/v1/chat/completions", **body_of(question, fields))

    async def choice(self, question: str | list[Json], **fields: Any) -> Json:
        """Return the only choice of `chat`."""
        [choice] = (await self.chat(question, **fields))["choices"]
        assert isinstance(choice, dict)
        return choice

    async def chunks(self, question: str | list[Json], **fields: Any) -> list[Json]:
        """Return the first choice's parts in a stream."""
        async with self.running.streaming("", **body_of(question, fields)) as chunks:
            return [choice async for chunk in chunks for choice in chunk["choices"]]

    async def tokens(self, text: str) -> list[Json]:
        """Return the target's tokens of a text."""
        response = await self.running.http.post("/tokenize", json={"inputs": text})
        tokens: list[Json] = response.json()
        return tokens

    async def refusal(self, question: str, **fields: Any) -> Json:
        """Return the error of a request that is refused."""
        response = await self.running.http.post(
            "/v1/chat/completions", json=body_of(question, fields)
        )
        assert response.status_code == 400, response.text
        error: Json = response.json()["error"]
        return error


def body_of(question: str | list[Json], fields: Json) -> Json:
    messages = [{"role": "user", "content": question}] if isinstance(question, str) else question
    return {"model": NAME, "messages": messages, "temperature": 0, "max_tokens": 60, **fields}


@asynccontextmanager
async def real_pair(config: StackConfig) -> AsyncIterator[RealPair]:
    async with served(config) as running:
        yield RealPair(running)
