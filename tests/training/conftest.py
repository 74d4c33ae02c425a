"""What the tests of the whole pipeline share."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from semspec.engine.checkpoint import load_tokenizer
from tests.training import support


@pytest.fixture(scope="package")
def models(
    checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """Draft and target, whose tokenizers differ."""
    torch.manual_seed(0)
    target = AutoModelForCausalLM.from_pretrained(checkpoints["qwen2"])
    target_folder = support.save_ending(
        target, load_tokenizer(str(checkpoints["qwen2"])), tmp_path_factory.mktemp("t")
    )
    return support.save_bytes_llama(tmp_path_factory.mktemp("draft")), target_folder


@pytest.fixture(scope="package")
def run(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `pair.yaml`, `work` and `out` of a run that has ended well."""
    folder = tmp_path_factory.mktemp("run")
    samples = {"num_samples": 6, "num_test_samples": 8, "temperature": 1.0, "top_p": 1.0}
    assert (
        support.semspec_train(
            "run", support.config(*models, folder / "out", samples=samples), folder
        )
        == 0
    )
    return folder
