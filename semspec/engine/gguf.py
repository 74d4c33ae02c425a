"""Checkpoints in GGUF files. Configuration and tokenizer are written once into a folder of the cache.

The folder has the files of a checkpoint on the hub, except weights. Weights are read from the GGUF file, whose path and
digest are in `gguf.json`.
"""

import errno
import json
import logging
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from semspec.engine.digests import cache_home, file_digests
from semspec.engine.gguf_header import Header, read_header
from semspec.engine.gguf_tokenizer import GgufTokenizer
from semspec.errors import Mismatch
from semspec.files import read_json, replacing

logger = logging.getLogger(__name__)

SUFFIX = ".gguf"
LINK = "gguf.json"
"""The file of a folder that names its GGUF file."""
FORMAT = 1
"""Format of the folders; a folder of another format is written again."""
SAFETENSORS = "give the model's safetensors checkpoint"

ARCHITECTURES: Mapping[str, str] = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
"""Class of the model, by the value of `general.architecture`."""

SIZES = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
}
"""Keys of the metadata after the architecture's name, by the name in config.json."""

UNSUPPORTED = {
    "expert_count": "experts",
    "attention.sliding_window": "sliding windows",
    "rope.scaling.attn_factor": "a scaled attention",
}
"""Features that are not supported, by the metadata that shows them."""


def is_gguf(model: str) -> bool:
    """Whether `model` is the name of a GGUF file, on this machine or in a repository of the hub."""
    return model.endswith(SUFFIX)


def readable_name(model: str) -> str:
    """Return the name of a GGUF file without folders and suffix, as the name of its model."""
    return re.split(r"[/:]", model)[-1].removesuffix(SUFFIX)


def checkpoint_of(file: Path) -> Path:
    """Return the folder with configuration and tokenizer of a GGUF file. Write it if it is not in the cache.

    Raises: Mismatch when the file cannot be served, or the folder cannot be written.
    """
    file = file.absolute()
    header = read_header(file)
    check_supported(file, header)
    try:
        [digest] = file_digests([file])
        folder = cache_home() / "gguf" / digest[:16]
        link = {"format": FORMAT, "file": str(file), "sha256": digest}
        existing = _read_link(folder)
        if existing is None:
            _write_folder(folder, _contents(file, header) | {LINK: json.dumps(link, indent=2)})
        elif existing != link:  # the file has moved, or there are copies
            with replacing(folder / LINK) as partial:
                partial.write_text(json.dumps(link, indent=2))
    except (OSError, RuntimeError) as error:  # RuntimeError: a user without a home folder
        reason = getattr(error, "strerror", None) or error
        raise Mismatch(
            f"cannot write configuration and tokenizer of {file} into a cache: {reason}",
            remedy="make room, or set XDG_CACHE_HOME to a folder that can be written",
        ) from error
    return folder


def weights_file(folder: str | Path) -> Path | None:
    """Return the GGUF file with the weights of a checkpoint's folder; None if the folder has weights of its own.

    Raises: Mismatch when the file no longer exists.
    """
    link = _read_link(Path(folder))
    if link is None:
        return None
    file = Path(link["file"])
    if not file.is_file():
        raise Mismatch(f"{file} no longer exists", remedy="put it back, or give its new path")
    return file


def weights_digest(folder: str | Path) -> str | None:
    """Return the SHA-256 of the GGUF file of a checkpoint's folder; None if the folder has weights of its own."""
    link = _read_link(Path(folder))
    return None if link is None else str(link["sha256"])


def check_supported(file: Path, header: Header) -> None:
    """Raises: Mismatch when the file's model or a tensor's type is not supported."""
    architecture = header.metadata.get("general.architecture")
    if (
        header.metadata.get("general.type") in ("mmproj", "adapter", "imatrix")
        or architecture == "clip"
    ):
        raise Mismatch(
            f"{file} is not a language model but a part for one",
            remedy="give the GGUF file of the model itself",
        )
    if architecture not in ARCHITECTURES:
        known = " and ".join(ARCHITECTURES)
        raise Mismatch(
            f"{file} has the architecture {architecture!r}, but only {known} are read",
            remedy=SAFETENSORS,
        )
    unsupported = [
        feature
        for key, feature in UNSUPPORTED.items()
        if header.metadata.get(f"{architecture}.{key}")
    ]
    if "rope_freqs.weight" in header.tensors:
        unsupported.append("rotary frequencies in a tensor")
    if unsupported:
        raise Mismatch(
            f"{file} has {' and '.join(unsupported)}, which are not read", remedy=SAFETENSORS
        )
    kinds = {tensor.type for tensor in header.tensors.values()}
    if unreadable := sorted(kind.name for kind in kinds if not _can_read(kind)):
        message = f"{file} has weights in {' and '.join(unreadable)}, which cannot be read"
        raise Mismatch(
            message, remedy="give a file in another quantisation, such as Q4_K_M or Q8_0"
        )
    if not header.tensors:
        raise Mismatch(
            f"{file} has no weights", remedy="give a GGUF file of a whole language model"
        )


def _can_read(kind: GGMLQuantizationType) -> bool:
    _, num_bytes = GGML_QUANT_SIZES[kind]
    block = np.zeros(num_bytes, np.uint8)
    if kind in (GGMLQuantizationType.F32, GGMLQuantizationType.F16):
        return True
    try:
        dequantize(block, kind)
    except NotImplementedError:
        return False
    return True


def _contents(file: Path, header: Header) -> dict[str, str]:
    """Return the files of a checkpoint's folder by name."""
    tokenizer = GgufTokenizer(str(file), header.metadata)
    raw, ends = tokenizer.build(), tokenizer.end_ids()
    config = _config(file, header, len(tokenizer.tokens))
    contents = {
        "config.json": json.dumps(config | {"eos_token_id": ends[0] if ends else None}, indent=2),
        "generation_config.json": json.dumps({"eos_token_id": ends} if ends else {}, indent=2),
        "tokenizer.json": raw.to_str(),
        "tokenizer_config.json": json.dumps(tokenizer.config(), indent=2, ensure_ascii=False),
    }
    if tokenizer.template is not None:
        contents["chat_template.jinja"] = tokenizer.template
    return contents


def _config(file: Path, header: Header, num_tokens: int) -> dict[str, Any]:
    """Return config.json of a model. Raises: Mismatch when the file lacks a size or has a wrong one."""
    architecture = str(header.metadata["general.architecture"])
    tensors = header.tensors

    def number(key: str, accepts: Callable[[Any], bool], default: Any = None) -> Any:
        value = header.metadata.get(f"{architecture}.{key}", default)
        if not accepts(value):
            raise Mismatch(
                f"{file} has {value!r} as {architecture}.{key}",
                remedy=f"fetch it again, or {SAFETENSORS}",
            )
        return value

    sizes = {name: number(key, _is_size) for name, key in SIZES.items()}
    head_size = number(
        "attention.key_length", _is_size, sizes["hidden_size"] // sizes["num_attention_heads"]
    )
    number("rope.dimension_count", lambda value: value == head_size, head_size)
    number("attention.value_length", lambda value: value == head_size, head_size)
    config = {
        "architectures": [ARCHITECTURES[architecture]],
        "model_type": architecture,
        **sizes,
        "num_key_value_heads": number(
            "attention.head_count_kv", _is_size, sizes["num_attention_heads"]
        ),
        "head_dim": head_size,
        "hidden_act": "silu",
        "rms_norm_eps": _decimal(number("attention.layer_norm_rms_epsilon", _is_positive)),
        "rope_theta": _decimal(number("rope.freq_base", _is_positive, 10000.0)),
        "tie_word_embeddings": "output.weight" not in tensors,
        "vocab_size": num_tokens,
    }
    if architecture == "llama":
        config["attention_bias"] = "blk.0.attn_q.bias" in tensors
        config["mlp_bias"] = "blk.0.ffn_up.bias" in tensors
    kind = number("rope.scaling.type", ("none", "linear", "yarn").__contains__, "none")
    if kind != "none":
        factor = number("rope.scaling.factor", _is_positive)
        config["rope_scaling"] = {"rope_type": kind, "factor": _decimal(factor)}
        if trained := header.metadata.get(f"{architecture}.rope.scaling.original_context_length"):
            config["rope_scaling"]["original_max_position_embeddings"] = trained
    return config


def _is_size(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_positive(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < float("inf")


def _decimal(value: float) -> float:
    """Return the shortest decimal number with the same float32 value, such as 1e-06."""
    return float(str(np.float32(value)))


def _read_link(folder: Path) -> dict[str, Any] | None:
    """Return the contents of `gguf.json`; None if it is missing, damaged or of another format."""
    try:
        link = read_json(folder / LINK)
    except (OSError, ValueError):
        return None
    if not isinstance(link, dict) or link.get("format") != FORMAT:
        return None
    is_valid = all(isinstance(link.get(key), str) for key in ("file", "sha256"))
    return link if is_valid else None


def _write_folder(folder: Path, contents: Mapping[str, str]) -> None:
    """Write a folder atomically; another process may write the same one. Raises: OSError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    logger.info("writing the configuration and tokenizer of a GGUF file to %s", folder)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        for name, text in contents.items():
            (partial / name).write_text(text, encoding="utf-8")
        if folder.exists() and _read_link(folder) is None:  # damaged, or of another format
            folder.rename(partial / "replaced")
            shutil.rmtree(partial / "replaced")
        partial.chmod(0o755)  # like other folders of a cache; mkdtemp creates a private one
        partial.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
