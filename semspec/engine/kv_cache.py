"""KV cache of a sequence, and prefix cache. Clearing the prefix cache changes no result."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

FIRST_CAPACITY = 256
"""Initial capacity of a buffer in tokens; it doubles when full."""


class KV(Protocol):
    """Keys and values of the tokens fed so far, in memory not shared with other instances."""

    @property
    def num_tokens(self) -> int: ...

    @property
    def nbytes(self) -> int:
        """Allocated memory in bytes, spare capacity included."""
        ...

    def crop(self, num_tokens: int) -> None:
        """Drop everything after the first `num_tokens` tokens."""
        ...

    def copy(self, num_tokens: int) -> Self:
        """A copy of the first `num_tokens` tokens."""
        ...

    def per_layer(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Keys and values of each layer, `[1, num_kv_heads, num_tokens, head_dim]`: read-only views."""
        ...


class DynamicKV:
    """For models run by transformers: tensors that grow by concatenation."""

    def __init__(self) -> None:
        self.cache = DynamicCache()

    @property
    def num_tokens(self) -> int:
        num_tokens: int = self.cache.get_seq_length()
        return num_tokens

    @property
    def nbytes(self) -> int:
        return sum(tensor.untyped_storage().nbytes() for pair in self.per_layer() for tensor in pair)

    def crop(self, num_tokens: int) -> None:
        surplus = self.num_tokens - num_tokens
        if surplus > 0:
            self.cache.crop(-surplus)

    def copy(self, num_tokens: int) -> Self:
        duplicate = type(self)()
        for index, pair in enumerate(self.per_layer()):
            keys, values = (tensor[:, :, :num_tokens].clone() for tensor in pair)
            duplicate.cache.update(keys, values, index)
        return duplicate

    def per_layer(self) -> Iterator[tuple[Tensor, Tensor]]:
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
    """Number of tokens above which a buffer gets no spare capacity."""

    def capacity(self, num_tokens: int) -> int:
        """Capacity to allocate for `num_tokens` tokens."""
        capacity = FIRST_CAPACITY
        while capacity < num_tokens:
            capacity *= 2
        return max(num_tokens, min(capacity, self.window))

    def shape(self, capacity: int) -> tuple[int, ...]:
        """`[num_layers, 2, 1, num_kv_heads, capacity, head_dim]`, keys before values."""
        return self.num_layers, 2, 1, self.num_kv_heads, capacity, self.head_dim


class BufferKV:
    """For models run by `Decoder`: one buffer written in place, so that `crop` only sets a length."""

    def __init__(self, layout: Layout) -> None:
        self.num_tokens = 0
        self.num_mirrored = 0
        """Number of leading tokens also in a CUDA graph's buffer, if that graph served this sequence last."""
        self._layout = layout
        self._buffer = torch.empty(layout.shape(0), dtype=layout.dtype, device=layout.device)

    @property
    def capacity(self) -> int:
        return self._buffer.shape[4]

    @property
    def nbytes(self) -> int:
        return self._buffer.nbytes

    def crop(self, num_tokens: int) -> None:
        self.num_tokens = min(self.num_tokens, num_tokens)
        self.num_mirrored = min(self.num_mirrored, num_tokens)

    def new(self) -> Self:
        """An empty instance for another sequence."""
        return type(self)(self._layout)

    def copy(self, num_tokens: int) -> Self:
        duplicate = self.new()
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
        old = self.stretch(0, self.num_tokens)
        self._buffer = self._buffer.new_empty(self._layout.shape(self._layout.capacity(num_tokens)))
        self.stretch(0, self.num_tokens).copy_(old)

    def stretch(self, start: int, end: int) -> Tensor:
        """A writable view of tokens `start` to `end`; shape: see `Layout.shape`."""
        return self._buffer.narrow(4, start, end - start)


MAX_LOGITS_ROWS = 4
"""Number of positions per entry whose next-token logits are kept."""


@dataclass(slots=True, eq=False)
class Prefix:
    """Tokens, their keys and values, and the logits that follow some positions."""

    kv: KV
    session: str = ""
    tokens: list[int] = field(default_factory=list)
    logits: OrderedDict[int, Tensor] = field(default_factory=OrderedDict)
    """Number of tokens -> logits of the next one, `[vocab_size]`."""

    @property
    def num_bytes(self) -> int:
        """Allocated memory, spare capacity of buffers included."""
        return self.kv.nbytes + sum(row.nbytes for row in self.logits.values())

    def remember_logits(self, num_tokens: int, row: Tensor) -> None:
        self.logits[num_tokens] = row.clone()  # not a view that keeps all rows alive
        if len(self.logits) > MAX_LOGITS_ROWS:
            self.logits.popitem(last=False)

    def crop(self, num_tokens: int) -> None:
        """Drop everything after the first `num_tokens` tokens."""
        self.kv.crop(num_tokens)
        del self.tokens[num_tokens:]
        for position in [position for position in self.logits if position > num_tokens]:
            del self.logits[position]

    def copy(self, num_tokens: int, session: str) -> "Prefix":
        """A copy of the first `num_tokens` tokens."""
        logits = OrderedDict((position, row) for position, row in self.logits.items() if position <= num_tokens)
        return Prefix(self.kv.copy(num_tokens), session, self.tokens[:num_tokens], logits)


class PrefixCache:
    """Longest-prefix reuse across sessions with LRU eviction, within a byte budget.

    Not thread-safe: only the engine's thread uses it. A prefix is removed while a call extends it, so two calls never
    write to the same memory.
    """

    def __init__(self, max_bytes: int, new_kv: Callable[[], KV]) -> None:
        self.max_bytes, self._new_kv = max_bytes, new_kv
        self._entries: OrderedDict[int, tuple[Prefix, np.ndarray]] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def take(self, tokens: Sequence[int], session: str) -> Prefix:
        """The longest cached prefix of `tokens` from which the next logits can be computed, for the caller to extend.

        The entry is removed from the cache and returned if it is a prefix of `tokens` or belongs to `session`;
        otherwise the caller gets a copy.
        """
        key, num_common = self._longest(np.asarray(tokens, dtype=np.int64), session)
        if key is None:
            return Prefix(self._new_kv(), session)
        prefix = self._entries[key][0]
        num_usable = num_common if num_common < len(tokens) or num_common in prefix.logits else num_common - 1
        if num_usable <= 0:
            return Prefix(self._new_kv(), session)
        if num_common < len(prefix.tokens) and (not session or prefix.session != session):
            self._entries.move_to_end(key)
            return prefix.copy(num_usable, session)
        self._remove(key)
        prefix.crop(num_usable)
        prefix.session = session
        return prefix

    def give(self, prefix: Prefix) -> None:
        """Insert a prefix, evicting the least recently used ones."""
        size = prefix.num_bytes
        if size > self.max_bytes or not prefix.tokens:
            return
        while self.num_bytes + size > self.max_bytes:
            self._remove(next(iter(self._entries)))
        self._entries[id(prefix)] = (prefix, np.asarray(prefix.tokens, dtype=np.int64))
        self.num_bytes += size

    def clear(self) -> None:
        self._entries.clear()
        self.num_bytes = 0

    def _longest(self, tokens: np.ndarray, session: str) -> tuple[int | None, int]:
        best, best_length = None, 0
        for key, (prefix, cached) in self._entries.items():
            length = _num_common(cached, tokens)
            is_better = length > best_length or (length == best_length > 0 and session and prefix.session == session)
            if is_better:
                best, best_length = key, length
        return best, best_length

    def _remove(self, key: int) -> None:
        prefix, _ = self._entries.pop(key)
        self.num_bytes -= prefix.num_bytes


def _num_common(a: np.ndarray, b: np.ndarray) -> int:
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length
