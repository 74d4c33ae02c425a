"""Checkpoints that the engines run or refuse, by their configuration alone, and the windows of their contexts."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    CLIPVisionConfig,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    JambaConfig,
    LlamaConfig,
    LlavaConfig,
    Mamba2Config,
    PretrainedConfig,
    Qwen2VLConfig,
    Qwen3NextConfig,
)

from semspec.commands.checks.processes import outline
from semspec.commands.plan import read_model
from semspec.engine.architecture import context_window
from semspec.engine.selftest import self_test
from semspec.engine.settings import ModelSettings
from semspec.errors import Mismatch
from semspec.rpc.server import ServiceServer
from semspec.rpc.servicers import TargetServicer
from semspec.types import Writer
from semspec_target.__main__ import load as load_target
from semspec_target.settings import TargetSettings
from tests.engine.support import Load, assert_same, params, prompt, tensor, written
from tests.helpers.checkpoints import SIZES, edit_json, randomise
from tests.helpers.rpc import settings as service_settings
from tests.helpers.words import build_tokenizer

QUANTISED: dict[str, dict[str, object]] = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    "mxfp4": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
    "by an unknown method": {"load_in_8bit": True},
}
TEXT = {
    **SIZES,
    "vocab_size": len(build_tokenizer()),
    "max_position_embeddings": 600,
    "eos_token_id": 1,
    "head_dim": 8,
}
VISION = {**SIZES, "image_size": 28, "patch_size": 14}
STATEFUL: dict[str, type[PretrainedConfig]] = {
    "Qwen3NextForCausalLM": Qwen3NextConfig,
    "JambaForCausalLM": JambaConfig,
    "Mamba2ForCausalLM": Mamba2Config,
}


async def refusals(folder: Path) -> set[str]:
    """Return the line with which the service ends, and that of `semspec doctor`; equal lines count once."""
    settings = TargetSettings(model=str(folder), device="cpu", port=0)
    server = ServiceServer(TargetServicer(lambda: load_target(settings)), service_settings())
    with pytest.raises(Mismatch) as at_start:
        await server.load()
    with pytest.raises(Mismatch) as of_doctor:
        outline(settings, Writer.TARGET)
    lines = {str(refused.value) for refused in (at_start, of_doctor)}
    assert not any("\n" in line for line in lines)
    return lines


@pytest.mark.parametrize("method", QUANTISED)
async def test_quantised_checkpoint_is_refused_with_what_runs_it(folder: Path, method: str) -> None:
    edit_json(folder / "config.json", quantization_config=QUANTISED[method])
    [line] = await refusals(folder)
    assert f"its weights are quantised ({method})" in line
    assert line.endswith("; set the engine to vllm on a GPU, or give the unquantised checkpoint")


@pytest.mark.parametrize("name", STATEFUL)
async def test_checkpoint_with_a_recurrent_state_is_refused(folder: Path, name: str) -> None:
    config = STATEFUL[name](architectures=[name]).to_dict()
    (folder / "config.json").write_text(json.dumps(config))
    [line] = await refusals(folder)
    assert f"{name} keeps a state that cannot be rolled back" in line
    assert "; give a model whose layers are all" in line


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (
            LlavaConfig(vision_config=CLIPVisionConfig(**VISION), text_config=LlamaConfig(**TEXT)),
            "LlavaConfig",
        ),
        (
            Qwen2VLConfig(architectures=["Qwen2VLForConditionalGeneration"]),
            "Qwen2VLForConditionalGeneration",
        ),
    ],
)
async def test_no_causal_model_refused(folder: Path, config: PretrainedConfig, name: str) -> None:
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    [line] = await refusals(folder)
    assert f"transformers has no causal language model for {name}; give " in line


async def test_unknown_architecture_is_refused_in_one_line(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "unheard-of"}))
    for line in await refusals(folder):
        assert "does not recognize this architecture" in line


async def test_model_that_does_not_run_ends_the_start_in_one_line(folder: Path, load: Load) -> None:
    """Its rotary embedding covers half of a head, which this class does not rotate."""
    rope = {
        "rope_type": "linear",
        "factor": 2.0,
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
    }
    edit_json(folder / "config.json", rope_parameters=rope)
    settings = ModelSettings(model=str(folder), port=0, device="cpu")
    engine = load(folder)
    with pytest.raises(Mismatch, match=r"^self-test: the model does not run: RuntimeError"):
        await self_test(engine, settings)


def save_multimodal(folder: Path, kind: str) -> Path:
    """Save a model with as many vision layers as text layers; returns `folder`."""
    torch.manual_seed(0)
    text: dict[str, Any] = {**TEXT, "bos_token_id": None, "pad_token_id": 0}
    if kind == "gemma3":
        config = Gemma3Config(
            text_config=text, vision_config=VISION, mm_tokens_per_image=4, eos_token_id=1
        )
        model = Gemma3ForConditionalGeneration(config)
    else:
        text |= {"vocab_size_per_layer_input": TEXT["vocab_size"], "hidden_size_per_layer_input": 8}
        model = Gemma4ForConditionalGeneration(
            Gemma4Config(text_config=text, vision_config=VISION, eos_token_id=1)
        )
    randomise(model, 0.1).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", ["gemma3", "gemma4"])
async def test_multimodal_states_of_language_model(kind: str, tmp_path: Path, load: Load) -> None:
    folder = save_multimodal(tmp_path / "model", kind)
    engine = load(folder)
    assert "with plain transformers too" in await self_test(
        engine, ModelSettings(model=str(folder), device="cpu")
    )
    context = await prompt(engine)
    [generated] = await written(engine, context, params(want_states=True))
    ids = torch.tensor([[*context.pieces[0].token_ids, *generated.segment.token_ids]])
    with torch.no_grad():
        hidden = engine.lm.model(ids, output_hidden_states=True).hidden_states[
            :-1
        ]  # the last is normalised
    expected = torch.stack(hidden)[:, 0, -len(generated.segment.token_ids) :].mean(1)
    assert_same(tensor(generated.states)[:-1], expected)


YARN = {"rope_type": "yarn", "factor": 4.0}
FACTORS = {"long_factor": [2.0] * 4, "short_factor": [1.0] * 4}
WINDOWS: dict[str, tuple[int, dict[str, object] | None, int]] = {
    "default": (512, None, 512),
    "yarn, as Qwen documents it": (512, {**YARN, "original_max_position_embeddings": 512}, 2048),
    "yarn, by its old name": (
        512,
        {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
        2048,
    ),
    "yarn, the factor included": (2048, {**YARN, "original_max_position_embeddings": 512}, 2048),
    "yarn, as of Qwen 3": (640, {**YARN, "original_max_position_embeddings": 512}, 2048),
    "yarn, without the trained window": (512, YARN, 2048),
    "yarn, without a factor": (
        2048,
        {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 512},
        2048,
    ),
    "linear": (512, {"rope_type": "linear", "factor": 4.0}, 2048),
    "linear, the factor included": (
        2048,
        {"rope_type": "linear", "factor": 4.0, "original_max_position_embeddings": 512},
        2048,
    ),
    "dynamic": (512, {"rope_type": "dynamic", "factor": 4.0}, 512),
    "longrope": (
        2048,
        {"rope_type": "longrope", **FACTORS, "original_max_position_embeddings": 512},
        512,
    ),
    "llama3": (
        2048,
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 512,
        },
        2048,
    ),
}


@pytest.mark.parametrize("field", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("name", WINDOWS)
async def test_window_of_rotary_embedding(folder: Path, name: str, field: str, load: Load) -> None:
    positions, rope, window = WINDOWS[name]
    config = json.loads((folder / "config.json").read_text())
    theta = config.pop("rope_parameters")["rope_theta"]
    parameters = rope and (rope | {"rope_theta": theta} if field == "rope_parameters" else rope)
    changed = config | {
        "max_position_embeddings": positions,
        "rope_theta": theta,
        field: parameters,
    }
    (folder / "config.json").write_text(json.dumps(changed))
    assert (await load(folder).info()).max_context_tokens == window
    assert (await load(folder, max_context_tokens=200).info()).max_context_tokens == 200
    assert (await load(folder, max_context_tokens=4096).info()).max_context_tokens == window, (
        "it may only be lowered"
    )
    settings = TargetSettings(model=str(folder), device="cpu")
    assert outline(settings, Writer.TARGET).handshake.max_context_tokens == window, "semspec doctor"
    assert context_window(read_model(str(folder)).config) == window, "semspec plan"


def test_window_with_several_rotary_embeddings_is_as_stated() -> None:
    text = {"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    assert context_window(Gemma3Config(text_config=text)) == 4096
