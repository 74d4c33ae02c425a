"""One real stack for the whole folder: five processes over a tiny pair."""

import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from safetensors.torch import load_file, save_file

from semspec.decoding import Backends
from semspec.decoding.likelihood.calibration import as_json
from semspec.release import load_release
from semspec.stack import StackConfig
from tests.helpers.calibrations import calibration
from tests.helpers.checkpoints import edit_json, loaded, random_probes
from tests.helpers.processes import GENEROUS_S
from tests.helpers.stack import Pair, Running, served
from tests.helpers.words import build_tokenizer

WINDOW_TOKENS = 20_000


def _fluent(checkpoint: Path, folder: Path) -> Path:
    """Copy the model with a wide window, segments of some ten tokens, and an end-of-sequence that it never writes."""
    shutil.copytree(checkpoint, folder)
    edit_json(folder / "config.json", max_position_embeddings=WINDOW_TOKENS)
    weights = load_file(folder / "model.safetensors")
    delimiter = build_tokenizer().convert_tokens_to_ids("\n\n")
    weights["model.embed_tokens.weight"][:, 0] = (
        20.0  # all but constant through the blocks, so that the
    )
    weights["model.norm.weight"][0] = (
        1.0  # delimiter, which alone looks at it, has nearly the same chance everywhere
    )
    weights["lm_head.weight"][:, 0] = 0.0
    weights["lm_head.weight"][delimiter] = 0.0
    weights["lm_head.weight"][delimiter, 0] = 0.9
    weights["lm_head.weight"][build_tokenizer().eos_token_id, 0] = -100.0
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def pair(
    checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    paths = {
        role: _fluent(checkpoints[name], folder / role)
        for role, name in (("draft", "llama"), ("target", "qwen2"))
    }
    async with loaded(paths["draft"], paths["target"]) as (draft, target):
        verifier = await random_probes(draft, target, folder / "probes")
        likelihood = calibration(await draft.info(), await target.info(), middle=-5.5)
        (folder / "probes" / "likelihood.json").write_text(json.dumps(as_json(likelihood)))
        replace(load_release(folder / "probes"), likelihood=likelihood.digest).save(
            folder / "probes"
        )
        backends = Backends(draft, target, verifier, likelihood=likelihood)
        yield Pair(paths["draft"], paths["target"], folder / "probes", backends)


@pytest.fixture(scope="package")
def stack_config(pair: Pair) -> StackConfig:
    """The pair, served; the gateway looks often for what it has lost."""
    return StackConfig(
        pair.draft,
        pair.target,
        pair.probes,
        environment={
            "SEMSPEC_GATEWAY_TARGET_PATIENCE_S": "1",
            "SEMSPEC_GATEWAY_MODEL_NAME": "semspec-demo",
            "SEMSPEC_GATEWAY_DEFAULTS": '{"max_tokens": 1024}',
        },
        start_timeout_s=GENEROUS_S,
    )


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def running(stack_config: StackConfig) -> AsyncIterator[Running]:
    async with served(stack_config) as running:
        yield running
