"""Files of models and probes that somebody else made: data, or refused, and never run."""

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from semspec.engine.causal_lm import CausalLM
from semspec.errors import InvalidRequest, Mismatch
from semspec.probes.probe import load_probe
from semspec.stack import BUNDLED_PAIR
from semspec.types import Message
from tests.helpers.checkpoints import edit_json


@pytest.fixture
def checkpoint(checkpoints: dict[str, Path], tmp_path: Path) -> Path:
    """A sound checkpoint to spoil."""
    return Path(shutil.copytree(checkpoints["qwen2"], tmp_path / "checkpoint"))


def load(checkpoint: Path) -> CausalLM:
    return CausalLM.load(str(checkpoint), None, "cpu", "float32")


def hostile_code(checkpoint: Path) -> Path:
    """A module in the checkpoint that leaves a file behind when it is imported; the file."""
    witness = checkpoint.parent / "witness"
    (checkpoint / "hostile.py").write_text(
        f"from pathlib import Path\nPath({str(witness)!r}).touch()\n"
        "from transformers import PretrainedConfig as Config, Qwen2ForCausalLM as Model\n"
        "from transformers import PreTrainedTokenizerFast as Tokenizer\n"
    )
    return witness


@pytest.mark.parametrize("model_type", ["qwen2", "hostile"])
def test_code_in_a_checkpoint_is_not_run(
    model_type: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(prompt: str = "") -> str:
        raise AssertionError(f"the operator was asked: {prompt}")

    monkeypatch.setattr("builtins.input", answer)
    witness = hostile_code(checkpoint)
    classes = {name: f"hostile.{name[4:]}" for name in ("AutoConfig", "AutoModel")}
    classes["AutoModelForCausalLM"] = "hostile.Model"
    edit_json(
        checkpoint / "config.json", model_type=model_type, architectures=["Model"], auto_map=classes
    )
    tokenizer = {"AutoTokenizer": ["hostile.Tokenizer", "hostile.Tokenizer"]}
    edit_json(checkpoint / "tokenizer_config.json", tokenizer_class="Tokenizer", auto_map=tokenizer)
    if model_type == "hostile":
        with pytest.raises(Mismatch, match="custom code"):
            load(checkpoint)
    else:
        assert load(checkpoint).info.num_layers == 3
    assert not witness.exists()


def test_pickles_beside_or_instead_of_safetensors_are_not_read(checkpoint: Path) -> None:
    weights = checkpoint / "model.safetensors"
    (checkpoint / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n(S'exit 1'\ntR.")
    assert load(checkpoint).info.num_layers == 3
    weights.unlink()
    with pytest.raises(Mismatch, match="safetensors"):
        load(checkpoint)
    weights.symlink_to("nowhere")  # as of a hub's cache that was cleaned up
    with pytest.raises(Mismatch, match="safetensors"):
        load(checkpoint)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda good: b"",
        lambda good: good[:1000],
        lambda good: struct.pack("<Q", 2**63) + good[8:],
        lambda good: struct.pack("<Q", len(good)) + good[8:],
        lambda good: struct.pack("<Q", 2) + b"[]" + good,
        lambda good: good.replace(b'"F32"', b'"F64"', 1),
        lambda good: good.replace(b'"data_offsets":[0,', b'"data_offsets":[9,', 1),
    ],
    ids=[
        "empty",
        "cut",
        "endless head",
        "head beyond the end",
        "list",
        "other width",
        "other place",
    ],
)
@pytest.mark.parametrize("kind", ["model", "probe"])
def test_malformed_safetensors_are_refused(
    kind: str, spoil: Any, checkpoint: Path, tmp_path: Path
) -> None:
    source = (
        checkpoint
        if kind == "model"
        else Path(shutil.copytree(BUNDLED_PAIR / "probes", tmp_path / "probes"))
    )
    weights = source / ("model.safetensors" if kind == "model" else "target.safetensors")
    good = weights.read_bytes()
    weights.write_bytes(spoil(good))
    assert weights.read_bytes() != good
    with pytest.raises(Mismatch):
        load(source) if kind == "model" else load_probe(weights)


@pytest.mark.parametrize("member", [
    {"shape": [1e308, 1]}, {"shape": [-1, 2**62]}, {"shape": "ab"}, {"layers": [10**9]}, {"layers": {"a": 1}},
    {"features": "__class__"}, {"segmentations": ["word"]}, {"__class__": "x"}, [], None, {},
])  # fmt: skip
def test_malformed_probe_card_is_refused(member: Any, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(BUNDLED_PAIR / "probes", tmp_path / "probes"))
    card = json.loads((folder / "target.json").read_text())
    (folder / "target.json").write_text(json.dumps({**card, **member} if member else member))
    with pytest.raises(Mismatch):
        load_probe(folder / "target.safetensors")


def test_template_of_a_checkpoint_cannot_leave_its_sandbox(checkpoint: Path) -> None:
    for stray in checkpoint.glob("chat_template*"):
        stray.unlink()
    template = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    edit_json(checkpoint / "tokenizer_config.json", chat_template=template)
    with pytest.raises(InvalidRequest, match="refuses"):
        load(checkpoint).tokenizer.encode([Message("user", "Hello?")])
