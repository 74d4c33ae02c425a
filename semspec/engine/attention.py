"""Attention of a step's tokens, each over the keys and values of its own sequence.

Single tokens of sequences in neighbouring slots share one kernel; longer chunks have one each.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from semspec.engine.kv_cache import BufferKV, Chunk, Layout

MAX_PADDING = 96
"""Positions that a kernel may compute in vain before a kernel more is cheaper (CPU)."""

Attend: TypeAlias = Callable[[int, Tensor, Tensor], Tensor]
"""Layer number, queries `[num_tokens, num_heads, head_dim]`, new keys and values `[num_tokens, 2, num_kv_heads,
head_dim]` -> `[num_tokens, num_heads * head_dim]`. Also stores the keys and values."""


def runs(chunks: Sequence[Chunk[BufferKV]]) -> list[list[Chunk[BufferKV]]]:
    """`chunks` in an order in which each run has one kernel: single tokens of neighbouring slots, or one longer chunk.

    All have capacity for their tokens."""
    found: list[list[Chunk[BufferKV]]] = []
    longest = 0
    for chunk in sorted(chunks, key=lambda one: (not one.is_single, id(one.kv.slab), one.kv.slot)):
        last = found[-1] if found else []
        padding = max(longest - chunk.end, (chunk.end - longest) * len(last))
        if last and _are_neighbours(last[-1], chunk) and padding <= MAX_PADDING:
            last.append(chunk)
            longest = max(longest, chunk.end)
        else:
            found.append([chunk])
            longest = chunk.end
    return found


def _are_neighbours(a: Chunk[BufferKV], b: Chunk[BufferKV]) -> bool:
    return a.is_single and b.is_single and a.kv.slab is b.kv.slab and a.kv.slot + 1 == b.kv.slot


class Attention:
    """Attention kernels for one model's heads."""

    def __init__(self, layout: Layout, num_heads: int) -> None:
        self._layout, self._num_heads = layout, num_heads
        self._num_kv_heads, self._head_dim = layout.num_kv_heads, layout.head_dim

    def of_many(self, ordered: Sequence[Sequence[Chunk[BufferKV]]]) -> Attend:
        """Attention for tokens in the order of `ordered`, a result of `runs`."""
        parts = [
            self._of_neighbours(run) if len(run) > 1 else self.of_one(run[0]) for run in ordered
        ]
        if len(parts) == 1:
            return parts[0]
        lengths = [sum(len(chunk.tokens) for chunk in run) for run in ordered]

        def attend(index: int, queries: Tensor, keys_values: Tensor) -> Tensor:
            pieces = zip(parts, queries.split(lengths), keys_values.split(lengths), strict=True)
            return torch.cat([part(index, own, new) for part, own, new in pieces])

        return attend

    def _of_neighbours(self, run: Sequence[Chunk[BufferKV]]) -> Attend:
        """A token each of sequences in neighbouring slots."""
        slab, first = run[0].kv.slab, run[0].kv.slot
        if slab is None:
            raise RuntimeError("reserve() comes before attention")
        device, dtype = self._layout.device, self._layout.dtype
        positions = torch.tensor([chunk.kv.num_tokens for chunk in run])
        longest = int(positions.max()) + 1
        past = slab.tensor.narrow(2, first, len(run)).narrow(4, 0, longest).flatten(0, 1).unbind()
        rows = slab.row_numbers(first, positions).to(device)
        beyond = torch.arange(longest) > positions[:, None]
        mask = (
            torch.zeros(beyond.shape, dtype=dtype)
            .masked_fill_(beyond, float("-inf"))[:, None, None]
            .to(device)
        )

        def attend(index: int, queries: Tensor, keys_values: Tensor) -> Tensor:
            slab.rows[index].index_copy_(
                0, rows, keys_values.transpose(0, 1).reshape(-1, self._head_dim)
            )
            return self._of_rows(queries, past[2 * index], past[2 * index + 1], mask)

        return attend

    def of_one(self, chunk: Chunk[BufferKV]) -> Attend:
        """Causal attention of the new tokens of one sequence."""
        start, end = chunk.kv.num_tokens, chunk.end
        past_and_own = chunk.kv.stretch(0, end).flatten(0, 1).unbind()
        own = chunk.kv.stretch(start, end).squeeze(2).unbind()
        mask = None if start == 0 or chunk.is_single else self._mask(chunk)

        def attend(index: int, queries: Tensor, keys_values: Tensor) -> Tensor:
            own[index].copy_(keys_values.permute(1, 2, 0, 3))
            keys, values = past_and_own[2 * index : 2 * index + 2]
            if mask is not None:
                return self._of_chunk(queries, keys, values, mask)
            return (
                _causal(queries, keys, values)
                if start == 0
                else self._of_rows(queries, keys, values, None)
            )

        return attend

    def _mask(self, chunk: Chunk[BufferKV]) -> Tensor:
        """Mask to add to the attention scores of a chunk's tokens: `[group_size * num_tokens, end]`."""
        start, end = chunk.kv.num_tokens, chunk.end
        mask = torch.full(
            (end - start, end), float("-inf"), dtype=self._layout.dtype, device=self._layout.device
        )
        return mask.triu_(start + 1).repeat(self._num_heads // self._num_kv_heads, 1)

    # Query heads that share a key head become rows of one head, so keys are not repeated.

    def _of_rows(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None
    ) -> Tensor:
        """One token of each sequence; keys and values `[num_sequences, num_kv_heads, num_positions, head_dim]`."""
        rows = queries.view(
            len(queries), self._num_kv_heads, -1, self._head_dim
        )  # [.., num_kv_heads, group_size, ..]
        return F.scaled_dot_product_attention(rows, keys, values, attn_mask=mask).flatten(1)

    def _of_chunk(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Several tokens of one sequence."""
        rows = (
            queries.unflatten(1, (self._num_kv_heads, -1)).permute(1, 2, 0, 3).flatten(1, 2)[None]
        )
        attended = F.scaled_dot_product_attention(rows, keys, values, attn_mask=mask)
        return (
            attended.reshape(self._num_kv_heads, -1, len(queries), self._head_dim)
            .permute(2, 0, 1, 3)
            .flatten(1)
        )


def _causal(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """All tokens of a sequence so far."""
    rows = queries.transpose(0, 1)[None]  # [1, num_heads, num_tokens, head_dim]
    attended = F.scaled_dot_product_attention(rows, keys, values, is_causal=True, enable_gqa=True)
    return attended[0].transpose(0, 1).flatten(1)
