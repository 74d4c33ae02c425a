"""Keys and values of sequences. Buffers of equal capacity are adjacent, so that one kernel call serves several."""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

FIRST_CAPACITY = 256
"""Initial capacity of a buffer in tokens; it doubles when full."""

SLAB_BYTES = 128 << 20
"""Size of a slab, unless one buffer is larger. On a CPU, pages that were never written take no memory."""
MAX_SLOTS = 16
"""Maximum number of buffers in a slab."""


class DynamicKV:
    """Keys and values for models that transformers runs: tensors that grow by concatenation."""

    def __init__(self) -> None:
        self.cache = DynamicCache()

    @property
    def num_tokens(self) -> int:
        num_tokens: int = self.cache.get_seq_length()
        return num_tokens

    @property
    def nbytes(self) -> int:
        """Allocated memory in bytes, spare capacity included."""
        return sum(
            tensor.untyped_storage().nbytes() for pair in self.per_layer() for tensor in pair
        )

    def growth_bytes(self, num_tokens: int) -> int:
        """Estimate by how much `nbytes` grows when the sequence grows to `num_tokens` tokens.

        Each token takes as much as those so far; the estimate for the first tokens is 0.
        """
        return self.nbytes * max(0, num_tokens - self.num_tokens) // max(1, self.num_tokens)

    def crop(self, num_tokens: int) -> None:
        """Drop everything after the first `num_tokens` tokens."""
        surplus = self.num_tokens - num_tokens
        if surplus > 0:
            self.cache.crop(-surplus)

    def clear(self) -> None:
        """Drop all tokens and free the memory."""
        self.cache = DynamicCache()

    def copy(self, num_tokens: int) -> "DynamicKV":
        """Return a copy of the first `num_tokens` tokens."""
        duplicate = DynamicKV()
        for index, pair in enumerate(self.per_layer()):
            keys, values = (tensor[:, :, :num_tokens].clone() for tensor in pair)
            duplicate.cache.update(keys, values, index)
        return duplicate

    def per_layer(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Return keys and values of each layer, `[1, num_kv_heads, num_tokens, head_dim]`: read-only views."""
        return ((layer.keys, layer.values) for layer in self.cache.layers if layer.is_initialized)


@dataclass(frozen=True, slots=True)
class Layout:
    """The parameters of a buffer's shape."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    window: int
    """Number of tokens above which a buffer has no spare capacity."""

    def capacity(self, num_tokens: int) -> int:
        """Return the capacity to allocate for `num_tokens` tokens."""
        capacity = FIRST_CAPACITY
        while capacity < num_tokens:
            capacity *= 2
        return max(num_tokens, min(capacity, self.window))

    def shape(self, capacity: int, num_slots: int = 1) -> tuple[int, ...]:
        """Return `[num_layers, 2, num_slots, num_kv_heads, capacity, head_dim]`; keys come before values."""
        return self.num_layers, 2, num_slots, self.num_kv_heads, capacity, self.head_dim

    def num_bytes(self, capacity: int) -> int:
        """Return the size of a buffer in bytes."""
        return (
            2 * self.num_layers * self.num_kv_heads * capacity * self.head_dim * self.dtype.itemsize
        )

    def zeros(self, capacity: int, num_slots: int) -> Tensor:
        """Allocate buffers of finite values: a NaN after a sequence's end would not be removed by the mask."""
        shape = self.shape(capacity, num_slots)
        if self.device.type != "cpu":
            return torch.zeros(shape, dtype=self.dtype, device=self.device)
        # By calloc, unlike torch.zeros, so that its pages take no memory yet.
        untouched = np.zeros(num_slots * self.num_bytes(capacity), np.uint8)
        return torch.from_numpy(untouched).view(self.dtype).view(shape)


class Slab:
    """Buffers of equal capacity in one tensor, of `Layout.shape`."""

    @torch.inference_mode(False)  # else it could not be written to outside inference mode
    def __init__(self, layout: Layout, capacity: int) -> None:
        self.capacity = capacity
        self.num_slots = max(1, min(MAX_SLOTS, SLAB_BYTES // layout.num_bytes(capacity)))
        self.tensor = layout.zeros(capacity, self.num_slots)
        self.rows = self.tensor.view(layout.num_layers, -1, layout.head_dim).unbind()
        """The vectors of each layer, `[2 * num_slots * num_kv_heads * capacity, head_dim]`."""
        self._starts = capacity * torch.arange(2 * self.num_slots * layout.num_kv_heads).view(
            2, self.num_slots, -1
        )
        self.free = list(range(self.num_slots))

    def row_numbers(self, first_slot: int, positions: Tensor) -> Tensor:
        """Return the indices in `rows` of the tokens at `positions[i]` of slots `first_slot + i`.

        Shape: `[2 * num_positions * num_kv_heads]`, keys before values.
        """
        return (
            self._starts[:, first_slot : first_slot + len(positions)] + positions[:, None]
        ).flatten()


class Slabs:
    """Allocates slots in slabs, the lowest first, so that sequences are adjacent. Not thread-safe."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.nothing = torch.empty(layout.shape(0), dtype=layout.dtype, device=layout.device)
        self._by_capacity: dict[int, list[Slab]] = {}

    def take(self, capacity: int) -> tuple[Slab, int]:
        """Allocate a slot. Return its slab and its number."""
        slabs = self._by_capacity.setdefault(capacity, [])
        slab = next((slab for slab in slabs if slab.free), None)
        if slab is None:
            slab = Slab(self.layout, capacity)
            slabs.append(slab)
        return slab, heapq.heappop(slab.free)

    def give(self, slab: Slab, slot: int) -> None:
        """Free a slot. At most one unused slab of each capacity is kept, and none of a single slot."""
        heapq.heappush(slab.free, slot)
        slabs = self._by_capacity[slab.capacity]
        is_kept = slab.num_slots > 1 and not any(
            other is not slab and other.free for other in slabs
        )
        if len(slab.free) == slab.num_slots and not is_kept:
            slabs.remove(slab)


class BufferKV:
    """Like `DynamicKV`, for models that `Decoder` runs: a slot, written in place, so that `crop` only sets a length."""

    def __init__(self, slabs: Slabs) -> None:
        self.num_tokens, self._slabs = 0, slabs
        self.slab: Slab | None = None
        self.slot, self._buffer = 0, slabs.nothing

    def __del__(self) -> None:
        self._release()

    @property
    def capacity(self) -> int:
        slab = self.slab  # another thread may release it while this one reads metrics
        return slab.capacity if slab else 0

    @property
    def nbytes(self) -> int:
        return self._slabs.layout.num_bytes(self.capacity)

    def growth_bytes(self, num_tokens: int) -> int:
        if num_tokens <= self.capacity:
            return 0
        layout = self._slabs.layout
        return layout.num_bytes(layout.capacity(num_tokens)) - layout.num_bytes(self.capacity)

    def crop(self, num_tokens: int) -> None:
        self.num_tokens = min(self.num_tokens, num_tokens)

    def clear(self) -> None:
        self.crop(0)
        self._release()

    def copy(self, num_tokens: int) -> "BufferKV":
        duplicate = BufferKV(self._slabs)
        duplicate.reserve(num_tokens)
        duplicate.stretch(0, num_tokens).copy_(self.stretch(0, num_tokens))
        duplicate.num_tokens = num_tokens
        return duplicate

    def per_layer(self) -> Iterator[tuple[Tensor, Tensor]]:
        return ((layer[0], layer[1]) for layer in self.stretch(0, self.num_tokens))

    def reserve(self, num_tokens: int) -> None:
        """Grow the capacity to at least `num_tokens` tokens."""
        if num_tokens <= self.capacity:
            return
        slab, slot = self._slabs.take(self._slabs.layout.capacity(num_tokens))
        slab.tensor.narrow(2, slot, 1).narrow(4, 0, self.num_tokens).copy_(
            self.stretch(0, self.num_tokens)
        )
        self._release()
        self.slab, self.slot, self._buffer = slab, slot, slab.tensor.narrow(2, slot, 1)

    def stretch(self, start: int, end: int) -> Tensor:
        """Return a writable view of tokens `start` to `end`; shape: see `Layout.shape`."""
        return self._buffer.narrow(4, start, end - start)

    def _release(self) -> None:
        if self.slab is not None:
            self._slabs.give(self.slab, self.slot)
        self.slab, self._buffer = None, self._slabs.nothing


KV: TypeAlias = DynamicKV | BufferKV
"""Keys and values of the tokens fed so far, in memory not shared with other instances."""
K = TypeVar("K", bound=KV, covariant=True)


@dataclass(frozen=True, slots=True)
class Chunk(Generic[K]):
    """Tokens to feed after those in `kv`, and the results that are wanted."""

    tokens: Sequence[int]
    kv: K
    num_rows: int = 1
    """Number of the last positions whose logits are wanted."""
    want_states: bool = False

    @property
    def end(self) -> int:
        """Number of tokens in `kv` afterwards."""
        return self.kv.num_tokens + len(self.tokens)

    @property
    def is_single(self) -> bool:
        """Whether there is only one token, whose attention needs no mask."""
        return len(self.tokens) == 1

    @property
    def positions(self) -> range:
        """The position of each token in its sequence."""
        return range(self.kv.num_tokens, self.end)
