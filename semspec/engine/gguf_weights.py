"""Weights of a GGUF file: as floating point, or as the integers, scales and offsets in the file.

Block formats: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and `gguf.quants`, which dequantises them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import Q4_K, dequantize
from numpy.typing import NDArray
from torch import Tensor
from transformers import PretrainedConfig

from semspec.engine.gguf_header import TensorInfo, read_header
from semspec.errors import Mismatch

Codes = NDArray[np.uint8]
Floats = NDArray[np.float32]

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Names of modules in GGUF files, and in transformers' Llama and Qwen2 models."""
BLOCKS_AT_ONCE = 1024
"""Blocks that are unpacked in one step; their intermediate arrays fit into a processor's cache."""


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A matrix `[rows, columns]` of small integers. Its values are `scale * (code - zero) + offset`.

    Scale and offset are those of a group of columns; the zero is 8 for four bits and 128 for eight.
    """

    codes: Codes
    """`[rows, groups, group_size * bits / 8]`; the first of two codes in a byte has the low bits."""
    scales: Floats
    """`[rows, groups]`."""
    offsets: Floats | None
    """`[rows, groups]`; None if all are zero."""
    bits: Literal[4, 8]

    @property
    def group_size(self) -> int:
        """Columns of a group."""
        return int(self.codes.shape[2]) * 8 // self.bits

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, groups, _ = self.codes.shape
        return rows, groups * self.group_size


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor of a GGUF file, mapped into memory."""

    type: GGMLQuantizationType
    raw: Codes
    """`[rows, bytes of a row]`; a vector is one row."""
    shape: tuple[int, ...]
    """In transformers' order: rows before columns."""

    def dequantized(self) -> Floats:
        """Return the values, `shape`."""
        values: Floats = dequantize(self.raw, self.type)
        return values.reshape(self.shape)

    def rows(self, numbers: NDArray[np.int64]) -> Floats:
        """Return the values of these rows of a matrix, `[rows, columns]`."""
        values: Floats = dequantize(self.raw[numbers], self.type)
        return values

    @property
    def is_packable(self) -> bool:
        """Whether `packed` supports the type."""
        return self.type in _UNPACKERS

    def packed(self) -> PackedMatrix:
        """Return the integers, scales and offsets of a matrix."""
        rows, (block_size, block_bytes) = len(self.raw), GGML_QUANT_SIZES[self.type]
        blocks = self.raw.reshape(-1, block_bytes)
        starts = range(0, len(blocks), BLOCKS_AT_ONCE)
        parts = [_UNPACKERS[self.type](blocks[start : start + BLOCKS_AT_ONCE]) for start in starts]
        codes, scales = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        offsets = [part[2] for part in parts if part[2] is not None]
        bits, group_size = parts[0][3], block_size // (scales.size // len(blocks))
        return PackedMatrix(
            codes.reshape(rows, -1, group_size * bits // 8),
            scales.reshape(rows, -1),
            np.concatenate(offsets).reshape(rows, -1) if offsets else None,
            bits,
        )


def map_file(file: Path) -> mmap:
    """Map `file` into memory."""
    with file.open("rb") as opened:
        return mmap(opened.fileno(), 0, access=ACCESS_READ)


def read_tensors(file: Path, mapped: mmap, config: PretrainedConfig) -> dict[str, GgufTensor]:
    """Return the tensors of a Llama or Qwen2 model in `file`, by their names in transformers.

    `mapped`: the result of `map_file`. The rows of a Llama model's queries and keys, which llama.cpp orders in another
    way, are in transformers' order.

    Raises: Mismatch when the file cannot be read, or has a tensor that these models lack.
    """
    heads: dict[str, int] = {
        "q_proj": config.num_attention_heads,
        "k_proj": config.num_key_value_heads,
    }
    tensors = dict[str, GgufTensor]()
    for info in read_header(file).tensors.values():
        raw, name = _rows(mapped, info), _name(file, info.name)
        if config.model_type == "llama" and (num_heads := heads.get(name.split(".")[-2])):
            raw = _in_halves(raw, num_heads)
        tensors[name] = GgufTensor(info.type, raw, info.shape)
    return tensors


def read_tensor(file: Path, gguf_name: str) -> GgufTensor | None:
    """Return one tensor by its name in `file`; None if there is none. Raises: Mismatch when the file cannot be read."""
    if (info := read_header(file).tensors.get(gguf_name)) is None:
        return None
    return GgufTensor(info.type, _rows(map_file(file), info), info.shape)


def _rows(mapped: mmap, info: TensorInfo) -> Codes:
    data: Codes = np.frombuffer(mapped, np.uint8, info.num_bytes, info.start)
    return data.reshape(prod(info.shape[:-1]), -1)


def _in_halves(rows: Codes, num_heads: int) -> Codes:
    """Reorder the rows of each head from pairs that are rotated together to halves."""
    pairs: Codes = rows.reshape(num_heads, -1, 2, rows.shape[1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _name(file: Path, gguf_name: str) -> str:
    """Return transformers' name of a tensor. Raises: Mismatch when Llama and Qwen2 models have no such tensor."""
    *block, module, kind = gguf_name.split(".")
    if module not in NAMES:
        raise Mismatch(
            f"{file} has a tensor {gguf_name}, which is not read",
            remedy="give the safetensors checkpoint",
        )
    layer = f"model.layers.{block[1]}." if block else ""
    return f"{layer}{NAMES[module]}.{kind}"


def to_tensor(values: Floats, dtype: torch.dtype) -> Tensor:
    """Return `values` as a tensor of a floating type."""
    return torch.from_numpy(values.copy() if not values.flags.writeable else values).to(dtype)


Unpacked = tuple[Codes, Floats, Floats | None, Literal[4, 8]]
"""Codes `[num_blocks, block_size * bits / 8]`, scales and offsets `[num_blocks, groups of a block]`, and the bits of a
code. The functions below return it for blocks `[num_blocks, block_bytes]`."""


def _float16(blocks: Codes) -> Floats:
    return np.ascontiguousarray(blocks).view(np.float16).astype(np.float32)


def _nibbles(packed: Codes, size: int) -> Codes:
    """Return the low four bits of `size` bytes, then their high four bits, then those of the next `size` bytes."""
    pairs = packed.reshape(len(packed), -1, 1, size) >> np.array([0, 4], np.uint8).reshape(
        1, 1, 2, 1
    )
    return (pairs & np.uint8(15)).reshape(len(packed), -1)


def _pairs_of_nibbles(packed: Codes, size: int) -> Codes:
    """Return the codes of `_nibbles`, two in a byte."""
    two_bytes = np.ascontiguousarray(packed).reshape(len(packed), -1, size).view(np.uint16)
    low = (two_bytes & 0x0F) | ((two_bytes >> 4) & 0xF0)
    high = ((two_bytes >> 4) & 0x0F) | ((two_bytes >> 8) & 0xF0)
    return np.stack([low, high], 2).astype(np.uint8).reshape(len(packed), -1)


def _bits(packed: Codes, size: int, shifts: range, mask: int) -> Codes:
    """Return the bits at each shift of `size` bytes, then those of the next `size` bytes."""
    steps = np.array(shifts, np.uint8).reshape(1, 1, -1, 1)
    return ((packed.reshape(len(packed), -1, 1, size) >> steps) & np.uint8(mask)).reshape(
        len(packed), -1
    )


def _fifth_bits(packed: Codes) -> Codes:
    """Return the 32 bits of four bytes, each shifted to the position above a nibble."""
    return np.unpackbits(np.ascontiguousarray(packed), axis=1, bitorder="little") << np.uint8(4)


def _q4_0(blocks: Codes) -> Unpacked:
    return _pairs_of_nibbles(blocks[:, 2:], 16), _float16(blocks[:, :2]), None, 4


def _q4_1(blocks: Codes) -> Unpacked:
    scales, minima = _float16(blocks[:, :2]), _float16(blocks[:, 2:4])
    return _pairs_of_nibbles(blocks[:, 4:], 16), scales, minima + 8 * scales, 4


def _q5_0(blocks: Codes) -> Unpacked:
    codes = _nibbles(blocks[:, 6:], 16) | _fifth_bits(blocks[:, 2:6])
    return codes + np.uint8(128 - 16), _float16(blocks[:, :2]), None, 8


def _q5_1(blocks: Codes) -> Unpacked:
    codes = _nibbles(blocks[:, 8:], 16) | _fifth_bits(blocks[:, 4:8])
    return codes + np.uint8(128), _float16(blocks[:, :2]), _float16(blocks[:, 2:4]), 8


def _q8_0(blocks: Codes) -> Unpacked:
    return blocks[:, 2:] + np.uint8(128), _float16(blocks[:, :2]), None, 8  # signed to unsigned


def _scales_and_minima(blocks: Codes) -> tuple[Floats, Floats]:
    """Return scales and minima of the eight groups of a Q4_K or Q5_K block."""
    scales, minima = Q4_K.get_scale_min(np.ascontiguousarray(blocks[:, 4:16]))
    return _float16(blocks[:, :2]) * scales, -_float16(blocks[:, 2:4]) * minima


def _q4_k(blocks: Codes) -> Unpacked:
    scales, minima = _scales_and_minima(blocks)
    return _pairs_of_nibbles(blocks[:, 16:], 32), scales, minima + 8 * scales, 4


def _q5_k(blocks: Codes) -> Unpacked:
    scales, minima = _scales_and_minima(blocks)
    codes = _nibbles(blocks[:, 48:], 32) | (_bits(blocks[:, 16:48], 32, range(8), 1) << np.uint8(4))
    return codes + np.uint8(128), scales, minima, 8


def _q6_k(blocks: Codes) -> Unpacked:
    codes = _nibbles(blocks[:, :128], 64) | (
        _bits(blocks[:, 128:192], 32, range(0, 8, 2), 3) << np.uint8(4)
    )
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8) * _float16(blocks[:, 208:])
    return codes + np.uint8(128 - 32), scales, None, 8


_UNPACKERS: Mapping[GGMLQuantizationType, Callable[[Codes], Unpacked]] = {
    GGMLQuantizationType.Q4_0: _q4_0,
    GGMLQuantizationType.Q4_1: _q4_1,
    GGMLQuantizationType.Q5_0: _q5_0,
    GGMLQuantizationType.Q5_1: _q5_1,
    GGMLQuantizationType.Q8_0: _q8_0,
    GGMLQuantizationType.Q4_K: _q4_k,
    GGMLQuantizationType.Q5_K: _q5_k,
    GGMLQuantizationType.Q6_K: _q6_k,
}
