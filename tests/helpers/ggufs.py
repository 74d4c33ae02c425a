"""GGUF files of tiny checkpoints."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import load_file
from torch import Tensor

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5


def save_gguf(
    file: Path,
    folder: Path,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    changes: Mapping[str, Any] | None = None,
    pre: str = "gpt-2",
) -> Path:
    """Write the Qwen2 or Llama checkpoint in `folder`, whose tokenizer is a byte-level BPE, as a GGUF file; return it.

    Matrices whose rows `kind` can divide are stored in it, all else in F32. `changes`: metadata with other values;
    None leaves one out.
    """
    config = json.loads((folder / "config.json").read_text())
    architecture = config["model_type"]
    metadata = {**_metadata(config, folder, pre), **(changes or {})}
    writer = gguf.GGUFWriter(file, str(metadata.pop("general.architecture", architecture)))
    for key, value in metadata.items():
        if value is not None:
            _add(writer, key, value)
    names = gguf.get_tensor_name_map(
        gguf.MODEL_ARCH.LLAMA if architecture == "llama" else gguf.MODEL_ARCH.QWEN2,
        config["num_hidden_layers"],
    )
    for name, tensor in load_file(folder / "model.safetensors").items():
        stored = _permuted(name, tensor, config) if architecture == "llama" else tensor
        data = stored.to(torch.float32).numpy()
        block_size, _ = gguf.GGML_QUANT_SIZES[kind]
        form = (
            kind
            if data.ndim == 2 and data.shape[1] % block_size == 0
            else gguf.GGMLQuantizationType.F32
        )
        stored_name = str(names.get_name(name, try_suffixes=(".weight", ".bias")))
        writer.add_tensor(stored_name, gguf.quants.quantize(data, form), raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _metadata(config: dict[str, Any], folder: Path, pre: str) -> dict[str, Any]:
    """Return the metadata of a checkpoint, as llama.cpp's converter names them."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    ids = dict(tokenizer["model"]["vocab"])
    types = dict.fromkeys(ids, NORMAL)
    for added in tokenizer["added_tokens"]:
        ids[added["content"]] = added["id"]
        types[added["content"]] = CONTROL if added["special"] else USER_DEFINED
    texts = {id: text for text, id in ids.items()}
    tokens = [texts.get(id, f"[PAD{id}]") for id in range(config["vocab_size"])]
    ends = config["eos_token_id"]
    template = folder / "chat_template.jinja"
    prefix = config["model_type"]
    rotary = config.get("rope_parameters") or config
    return {
        f"{prefix}.block_count": config["num_hidden_layers"],
        f"{prefix}.context_length": config["max_position_embeddings"],
        f"{prefix}.embedding_length": config["hidden_size"],
        f"{prefix}.feed_forward_length": config["intermediate_size"],
        f"{prefix}.attention.head_count": config["num_attention_heads"],
        f"{prefix}.attention.head_count_kv": config["num_key_value_heads"],
        f"{prefix}.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        f"{prefix}.rope.freq_base": float(rotary["rope_theta"]),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [types.get(token, UNUSED) for token in tokens],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in tokenizer["model"]["merges"]],
        "tokenizer.ggml.eos_token_id": ends if isinstance(ends, int) else ends[0],
        "tokenizer.chat_template": template.read_text() if template.exists() else None,
    }


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)


def _permuted(name: str, tensor: Tensor, config: dict[str, Any]) -> Tensor:
    """Return a weight of Llama with the rows of each head interleaved, as llama.cpp's rotary embedding reads them."""
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    kind = next((kind for kind in heads if f".{kind}." in name), None)
    if kind is None:
        return tensor
    num_heads = config[heads[kind]]
    halves = tensor.reshape(num_heads, 2, tensor.shape[0] // num_heads // 2, *tensor.shape[1:])
    return halves.swapaxes(1, 2).reshape(tensor.shape)
