"""Attention of many rows that continue one context, whose keys and values are kept once and not copied for each row."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

NAME = "semspec_shared_prefix"
MAX_SCORES = 2**26
"""Most attention scores that a layer holds at once. Beyond, a fused kernel over copied keys needs less memory."""

Prefix = list[tuple[Tensor, Tensor]]
"""Keys and values of the context in each layer, `[1, kv_heads, tokens, head_size]`."""


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float,
    prefix: Prefix,
    **_: object,
) -> tuple[Tensor, None]:
    """Attention of each row to `prefix` and, causally, to its own tokens.

    `query`: `[rows, heads, length, head_size]`; `key`, `value`: a row's own, `[rows, kv_heads, own_length, head_size]`.
    Returns `[rows, length, heads, head_size]`. `mask` is unused: rows are padded on the right only.
    """
    prefix_key, prefix_value = (tensor[0] for tensor in prefix[int(module.layer_idx)])  # type: ignore[arg-type]
    rows, num_heads, length, size = query.shape
    kv_heads, own_length = key.shape[1:3]
    grouped = (query * scaling).reshape(rows, kv_heads, -1, size)  # [rows, kv_heads, group * length, size]
    by_head = grouped.transpose(0, 1).reshape(kv_heads, -1, size)  # one matrix product a head for all rows
    shared = (by_head @ prefix_key.transpose(1, 2)).view(kv_heads, rows, -1, prefix_key.shape[1]).transpose(0, 1)
    own = grouped @ key.transpose(2, 3)
    if length > 1:
        future = torch.ones(length, own_length, dtype=torch.bool, device=own.device).triu(own_length - length + 1)
        own = own.view(rows, kv_heads, -1, length, own_length).masked_fill(future, float("-inf")).view(own.shape)
    weights = torch.softmax(torch.cat([shared, own], -1), -1, dtype=torch.float32).to(query.dtype)
    to_prefix, to_own = weights.split([prefix_key.shape[1], own_length], -1)
    mixed = (to_prefix.transpose(0, 1).reshape(kv_heads, -1, prefix_key.shape[1]) @ prefix_value).view(
        kv_heads, rows, -1, size
    ).transpose(0, 1) + to_own @ value
    return mixed.reshape(rows, num_heads, length, size).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attention)


@contextmanager
def attending_to_prefix(model: PreTrainedModel) -> Iterator[None]:
    """`model` takes the argument `prefix` in its forward pass."""
    usual = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(usual)
