"""A checkpoint that lacks weights is refused by name, at the start of a service and by `semspec doctor`."""

import json
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from semspec.clustering.nli import NliModel
from semspec.engine.causal_lm import CausalLM
from semspec.errors import Mismatch
from tests.helpers.checkpoints import edit_json, model_of, randomise
from tests.helpers.words import build_tokenizer
from tests.training.test_entailment import on_cpu, save_tiny

WAYS = {"cpu": "the service", "meta": "semspec doctor"}
"""Devices, by which a service loads weights, and `semspec doctor` looks at them without loading them."""


@pytest.fixture(params=WAYS)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["qwen2", "llama"])
def folder(request: pytest.FixtureRequest, checkpoints: dict[str, Path], tmp_path: Path) -> Path:
    """Return a checkpoint that a test may change; its embeddings are not tied."""
    return Path(shutil.copytree(checkpoints[request.param], tmp_path / "model"))


def refusal(folder: Path, device: str) -> str:
    """Return the one line with which the checkpoint is refused."""
    with pytest.raises(Mismatch) as refused:
        CausalLM.load(str(folder), None, device, "float32")
    assert "\n" not in str(refused.value)
    return str(refused.value)


def without(folder: Path, *parts: str) -> list[str]:
    """Remove the weights whose names contain one of `parts`; returns their names in alphabetical order."""
    weights = load_file(folder / "model.safetensors")
    removed = sorted(name for name in weights if any(part in name for part in parts))
    kept = {name: weight for name, weight in weights.items() if name not in removed}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    return removed


@pytest.mark.parametrize(
    "parts",
    [
        ("lm_head.weight",),
        ("model.norm.weight",),
        ("layers.1.",),
        ("embed_tokens",),
        ("layers.2.mlp.up_proj",),
    ],
    ids=lambda parts: parts[0],
)
def test_missing_weights_are_refused(folder: Path, device: str, parts: Sequence[str]) -> None:
    removed = without(folder, *parts)
    message = refusal(folder, device)
    assert f"its files lack {len(removed)} of its weights: {', '.join(removed[:3])}" in message
    assert ("more" in message) == (len(removed) > 3)
    assert "; fetch the checkpoint's files again" in message


def test_missing_weight_is_refused_beyond_any_size(tmp_path: Path, device: str) -> None:
    """1.2 GB of weights in a file that takes no room."""
    save_sparse(tmp_path, "lm_head.weight", num_bytes=1_200_000_000)
    assert "lack 1 of its weights: lm_head.weight" in refusal(tmp_path, device)


def save_sparse(folder: Path, missing: str, num_bytes: int) -> None:
    """Save a Llama of zeros without the weight `missing`, most of whose `num_bytes` are in its MLP."""
    sizes: dict[str, Any] = {"num_hidden_layers": 1, "intermediate_size": num_bytes // (12 * 32)}
    with torch.device("meta"):
        model = model_of("llama", **sizes)
    model.config.architectures = ["LlamaForCausalLM"]
    model.config.save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, weight in model.state_dict().items():
        if name != missing:
            start, end = end, end + 4 * weight.numel()
            shape = list(weight.shape)
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


def test_missing_shard_of_the_index_is_refused(folder: Path, device: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="40KB")
    lost = sorted(folder.glob("model-0000*.safetensors"))[1]
    with safe_open(lost, "pt") as file:
        names = sorted(file.keys())
    lost.unlink()
    message = refusal(folder, device)
    assert lost.name in message or names[0] in message


@pytest.mark.parametrize(
    ("field", "name"), [("intermediate_size", "mlp.down_proj"), ("vocab_size", "embed_tokens")]
)
def test_weights_of_another_size_refused(folder: Path, device: str, field: str, name: str) -> None:
    edit_json(folder / "config.json", **{field: 40})
    message = refusal(folder, device)
    assert "have other sizes than its config.json says" in message
    assert f"{name}.weight ([" in message
    assert ", not [" in message
    assert "; fetch the checkpoint's files again, or correct config.json" in message


@pytest.mark.parametrize("stored", ["model.embed_tokens.weight", "lm_head.weight"])
@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
def test_tied_weight_is_there(tmp_path: Path, device: str, architecture: str, stored: str) -> None:
    model = randomise(model_of(architecture, tie_word_embeddings=True, bos_token_id=None))
    model.save_pretrained(tmp_path)
    build_tokenizer().save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights[stored] = weights.pop("model.embed_tokens.weight")
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    lm = CausalLM.load(str(tmp_path), None, device, "float32")
    if device == "cpu":
        assert torch.equal(lm.model.lm_head.weight, model.lm_head.weight)


def test_unused_weights_are_named(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)  # in old checkpoints
    weights |= {f"model.layers.{index}.adapter.weight": torch.ones(4) for index in range(5)}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    CausalLM.load(str(folder), None, "cpu", "float32")
    [line] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "does not use 5 weights of the checkpoint: model.layers.0.adapter.weight, " in line
    assert line.endswith("and 2 more")


def test_nli_model_that_lacks_its_classifier_is_refused(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    [*removed] = without(tmp_path, "classifier")
    with pytest.raises(Mismatch, match=f"lack {len(removed)} of its weights: {removed[0]}"):
        NliModel.load(on_cpu(str(tmp_path)))
