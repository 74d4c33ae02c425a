"""Builds Llama and Qwen2 models from the weights of a GGUF file, packed or as floating point."""

from collections.abc import Iterator, Mapping
from mmap import MADV_DONTNEED
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from semspec.engine.gguf_weights import (
    Floats,
    GgufTensor,
    PackedMatrix,
    map_file,
    read_tensors,
    to_tensor,
)
from semspec.engine.numeric_form import Form
from semspec.engine.packed import PackedEmbedding, PackedLayer, PackedLinear
from semspec.engine.weights import check_weights
from semspec.errors import Mismatch

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
Tensors = Mapping[str, GgufTensor]


def load_gguf(name: str, file: Path, config: PretrainedConfig, form: Form) -> PreTrainedModel:
    """Load the model `name` of a GGUF file onto the CPU.

    Raises: Mismatch when weights are missing or have a wrong size, or `form` is packed and a matrix cannot be packed.
    """
    mapped, model = map_file(file), _outline(config)
    tensors = read_tensors(file, mapped, config)
    _check(name, tensors, model)
    is_packed = form == "packed"
    loaded = _packed(name, model, tensors) if is_packed else _floating(model, tensors, form)
    mapped.madvise(MADV_DONTNEED)  # the pages that were read would count as memory
    return loaded


def gguf_outline(name: str, file: Path, config: PretrainedConfig) -> PreTrainedModel:
    """Return the model `name` of a GGUF file without its weights. Raises: Mismatch as `load_gguf`."""
    model = _outline(config)
    _check(name, read_tensors(file, map_file(file), config), model)
    return model


def float_layers(file: Path, config: PretrainedConfig) -> Iterator[tuple[int, nn.Module]]:
    """Yield transformers' first and last layer in fp32 with the weights of a GGUF file, each with its number."""
    outline: Any = _outline(config)
    tensors = read_tensors(file, mapped := map_file(file), config)
    for number in sorted({0, config.num_hidden_layers - 1}):
        layer = outline.model.layers[number]
        values = {name: tensors[f"model.layers.{number}.{name}"] for name in layer.state_dict()}
        weights = {
            name: to_tensor(value.dequantized(), torch.float32) for name, value in values.items()
        }
        layer.load_state_dict(weights, assign=True)
        yield number, layer.eval()
        mapped.madvise(MADV_DONTNEED)


def _check(name: str, tensors: Tensors, model: PreTrainedModel) -> None:
    check_weights(name, {key: tensor.shape for key, tensor in tensors.items()}, model)


def _floating(model: PreTrainedModel, tensors: Tensors, form: Form) -> PreTrainedModel:
    """Fill an outline with floating-point weights."""
    dtype = getattr(torch, form)
    weights = {name: to_tensor(tensor.dequantized(), dtype) for name, tensor in tensors.items()}
    weights.setdefault(HEAD, weights[EMBEDDING])
    model.load_state_dict(weights, assign=True)
    return model


def _packed(name: str, model: Any, tensors: Tensors) -> PreTrainedModel:
    """Fill an outline with matrices that stay packed as in the file, and with everything else in fp32.

    Raises: Mismatch when the file has a matrix of a type that cannot stay packed.
    """
    for key, tensor in tensors.items():
        is_multiplied = len(tensor.shape) == 2 and (key != EMBEDDING or HEAD not in tensors)
        if is_multiplied and not tensor.is_packable:
            reason = f"its {key} has the type {tensor.type.name}, which has no packed product"
            raise Mismatch(
                f"dtype packed: {name}: {reason}", remedy="set dtype to float32 or bfloat16"
            )
    from semspec.engine.onnx_layers import (  # with ONNX Runtime, which few models need
        LayerWeights,
        finish_layer,
        product,
        start_layer,
    )

    num_threads, eps = torch.get_num_threads(), model.config.rms_norm_eps

    def weight(module: str) -> tuple[PackedMatrix, Floats | None]:
        bias = tensors.get(f"{module}.bias")
        return tensors[f"{module}.weight"].packed(), bias.dequantized() if bias else None

    def layer_weights(number: int) -> LayerWeights:
        prefix = f"model.layers.{number}"
        return LayerWeights(
            tensors[f"{prefix}.input_layernorm.weight"].dequantized(),
            [weight(f"{prefix}.self_attn.{part}_proj") for part in "qkv"],
            weight(f"{prefix}.self_attn.o_proj"),
            tensors[f"{prefix}.post_attention_layernorm.weight"].dequantized(),
            *(weight(f"{prefix}.mlp.{part}_proj") for part in ("gate", "up", "down")),
        )

    layers, next_qkv = model.model.layers, list[torch.Tensor]()
    weights, last = layer_weights(0), len(layers) - 1
    for number, layer in enumerate(layers):
        following = layer_weights(number + 1) if number < last else None
        start = None if number else start_layer(weights, eps, num_threads)
        finish = finish_layer(weights, following, eps, num_threads)
        sizes = [matrix.shape[0] for matrix, _ in weights.qkv]
        layers[number] = PackedLayer(layer.self_attn, sizes, start, finish, next_qkv)
        weights = following or weights
    norm = tensors["model.norm.weight"].dequantized()
    model.model.norm.weight = nn.Parameter(to_tensor(norm, torch.float32), requires_grad=False)
    model.model.embed_tokens = PackedEmbedding(tensors[EMBEDDING])
    head = (HEAD if HEAD in tensors else EMBEDDING).removesuffix(".weight")
    model.lm_head = PackedLinear(product(*weight(head), num_threads))
    loaded: PreTrainedModel = model
    return loaded


def _outline(config: PretrainedConfig) -> PreTrainedModel:
    """Return the model without values of its weights, but with its rotary embedding."""
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    without_weights: PreTrainedModel = model
    return without_weights
