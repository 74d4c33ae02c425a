"""Attention of a step's tokens, each over the keys and values of its sequence.

Single tokens of sequences in neighbouring slots share one kernel call; each longer chunk has its own.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from semspec.engine.kv_cache import BufferKV, Chunk, Layout

MAX_PADDING = 96
"""Padded positions of a kernel call above which a second call is cheaper (on a CPU)."""

Attend: TypeAlias = Callable[[int, Tensor, Tensor], Tensor]
"""Stores new keys and values, and returns the attention's output `[num_tokens, num_heads * head_dim]`.

Parameters: layer number, queries `[num_tokens, num_heads, head_dim]`, new keys and values `[num_tokens, 2,
num_kv_heads, head_dim]`.
"""


def runs(chunks: Sequence[Chunk[BufferKV]]) -> list[list[Chunk[BufferKV]]]:
    """Group `chunks` into runs that share a kernel call: single tokens of neighbouring slots, or one longer chunk.

    All chunks must have capacity for their tokens.
    """
    found: list[list[Chunk[BufferKV]]] = []
    longest = 0
    for chunk in sorted(chunks, key=lambda c: (not c.is_single, id(c.kv.slab), c.kv.slot)):
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

    def for_runs(self, ordered: Sequence[Sequence[Chunk[BufferKV]]]) -> Attend:
        """Return the attention for tokens in the order of `ordered`, a result of `runs`."""
        parts = [
            self._for_neighbours(run) if len(run) > 1 else self.for_chunk(run[0]) for run in ordered
        ]
        if len(parts) == 1:
            return parts[0]
        lengths = [sum(len(chunk.tokens) for chunk in run) for run in ordered]

        def attend(index: int, queries: Tensor, keys_values: Tensor) -> Tensor:
            pieces = zip(parts, queries.split(lengths), keys_values.split(lengths), strict=True)
            return torch.cat([part(index, query, new) for part, query, new in pieces])

        return attend

    def _for_neighbours(self, run: Sequence[Chunk[BufferKV]]) -> Attend:
        """Return the attention of one token of each sequence, in neighbouring slots."""
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
            return self._attend_rows(queries, past[2 * index], past[2 * index + 1], mask)

        return attend

    def for_chunk(self, chunk: Chunk[BufferKV]) -> Attend:
        """Return the causal attention of the new tokens of one sequence."""
        start, end = chunk.kv.num_tokens, chunk.end
        whole = chunk.kv.stretch(0, end).flatten(0, 1).unbind()
        new = chunk.kv.stretch(start, end).squeeze(2).unbind()
        mask = None if start == 0 or chunk.is_single else self._mask(chunk)

        def attend(index: int, queries: Tensor, keys_values: Tensor) -> Tensor:
            new[index].copy_(keys_values.permute(1, 2, 0, 3))
            keys, values = whole[2 * index : 2 * index + 2]
            if mask is not None:
                return self._attend_chunk(queries, keys, values, mask)
            if start == 0:
                return _attend_causally(queries, keys, values)
            return self._attend_rows(queries, keys, values, None)

        return attend

    def _mask(self, chunk: Chunk[BufferKV]) -> Tensor:
        """Return the mask to add to the attention scores of a chunk: `[group_size * num_tokens, end]`."""
        start, end = chunk.kv.num_tokens, chunk.end
        mask = torch.full(
            (end - start, end), float("-inf"), dtype=self._layout.dtype, device=self._layout.device
        )
        return mask.triu_(start + 1).repeat(self._num_heads // self._num_kv_heads, 1)

    # Query heads that share a key head become rows of one head, so keys are not repeated.

    def _attend_rows(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Attend with one token of each sequence.

        Keys and values: `[num_sequences, num_kv_heads, num_positions, head_dim]`.
        """
        # [num_sequences, num_kv_heads, group_size, head_dim]
        rows = queries.view(len(queries), self._num_kv_heads, -1, self._head_dim)
        return F.scaled_dot_product_attention(rows, keys, values, attn_mask=mask).flatten(1)

    def _attend_chunk(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Attend with several tokens of one sequence that has earlier ones."""
        rows = (
            queries.unflatten(1, (self._num_kv_heads, -1)).permute(1, 2, 0, 3).flatten(1, 2)[None]
        )
        attended = F.scaled_dot_product_attention(rows, keys, values, attn_mask=mask)
        return (
            attended.reshape(self._num_kv_heads, -1, len(queries), self._head_dim)
            .permute(2, 0, 1, 3)
            .flatten(1)
        )


def _attend_causally(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attend with all tokens of a sequence."""
    rows = queries.transpose(0, 1)[None]  # [1, num_heads, num_tokens, head_dim]
    attended = F.scaled_dot_product_attention(rows, keys, values, is_causal=True, enable_gqa=True)
    return attended[0].transpose(0, 1).flatten(1)
