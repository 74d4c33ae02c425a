"""Llama and Qwen2 models with the weights of a GGUF file, packed or as floating point."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from semspec.engine.gguf_weights import GgufTensor, to_tensor
from semspec.engine.packed import JointProjection, PackedEmbedding, PackedModule, Weight, gated_mlp, product
from semspec.errors import Mismatch

Tensors = Mapping[str, GgufTensor]


def dequantized_model(config: PretrainedConfig, tensors: Tensors, dtype: torch.dtype) -> PreTrainedModel:
    """Return the model with its weights as floating point. Raises: Mismatch when some are missing."""
    model = _outline(config, dtype)
    weights = {name: to_tensor(tensor.dequantized(), dtype) for name, tensor in tensors.items()}
    if "lm_head.weight" not in weights:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights, assign=True)
    return model


def packed_model(config: PretrainedConfig, tensors: Tensors) -> PreTrainedModel:
    """Return the model with matrices as in the file, for a CPU; everything else is fp32.

    Raises: Mismatch when the file has a matrix of a type that is not packed.
    """
    for name, tensor in tensors.items():
        is_product = len(tensor.shape) == 2 and "embed_tokens" not in name
        if is_product and not tensor.is_packable:
            reason = f"its {name} is of the type {tensor.type.name}, which is not packed"
            raise Mismatch(f"{reason}; set dtype to float32 or bfloat16")
    model: Any = _outline(config, torch.float32)
    num_threads = torch.get_num_threads()

    def weight(name: str) -> Weight:
        bias = tensors.get(f"{name}.bias")
        return tensors[f"{name}.weight"].packed(), bias.dequantized() if bias else None

    for number, layer in enumerate(model.model.layers):
        name = f"model.layers.{number}"
        attention = layer.self_attn
        projections = [weight(f"{name}.self_attn.{part}_proj") for part in "qkv"]
        joint = JointProjection(projections, num_threads)
        attention.q_proj, attention.k_proj, attention.v_proj = joint.parts
        attention.o_proj = PackedModule(product([weight(f"{name}.self_attn.o_proj")], num_threads))
        mlp = [weight(f"{name}.mlp.{part}_proj") for part in ("gate", "up", "down")]
        layer.mlp = PackedModule(gated_mlp(*mlp, num_threads))
        for norm in ("input_layernorm", "post_attention_layernorm"):
            _set_norm(getattr(layer, norm), tensors[f"{name}.{norm}.weight"])
    _set_norm(model.model.norm, tensors["model.norm.weight"])
    model.model.embed_tokens = PackedEmbedding(tensors["model.embed_tokens.weight"])
    head = "lm_head" if "lm_head.weight" in tensors else "model.embed_tokens"
    model.lm_head = PackedModule(product([weight(head)], num_threads))
    loaded: PreTrainedModel = model
    return loaded


def _set_norm(norm: Any, values: GgufTensor) -> None:
    norm.weight = nn.Parameter(to_tensor(values.dequantized(), torch.float32), requires_grad=False)


def _outline(config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """Return the model with shapes and without weights, but with its rotary embedding."""
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    outline: PreTrainedModel = model
    return outline
