"""Keys and values of one sequence, as both ways of running a model hold them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor
from transformers import DynamicCache

FIRST_CAPACITY = 256
"""Tokens a buffer has room for at first; it doubles when full."""


class KV(Protocol):
    """Keys and values of the tokens fed so far, in memory of their own."""

    @property
    def num_tokens(self) -> int: ...

    @property
    def nbytes(self) -> int:
        """What is really held, spare room included."""
        ...

    def crop(self, num_tokens: int) -> None:
        """Forget everything after the first `num_tokens` tokens."""
        ...

    def copy(self, num_tokens: int) -> Self:
        """The first `num_tokens` tokens, in memory of their own."""
        ...

    def per_layer(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Keys and values of each layer, `[1, num_kv_heads, num_tokens, head_dim]`: views, not to be written to."""
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
        twin = type(self)()
        for index, pair in enumerate(self.per_layer()):
            keys, values = (tensor[:, :, :num_tokens].clone() for tensor in pair)
            twin.cache.update(keys, values, index)
        return twin

    def per_layer(self) -> Iterator[tuple[Tensor, Tensor]]:
        return ((layer.keys, layer.values) for layer in self.cache.layers if layer.is_initialized)


@dataclass(frozen=True, slots=True)
class Layout:
    """What a buffer's shape follows from."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    window: int
    """Tokens beyond which a buffer is not made larger than what it must hold."""

    def capacity(self, num_tokens: int) -> int:
        """Room to make for `num_tokens` tokens and some more."""
        capacity = FIRST_CAPACITY
        while capacity < num_tokens:
            capacity *= 2
        return max(num_tokens, min(capacity, self.window))

    def shape(self, capacity: int) -> tuple[int, ...]:
        """`[num_layers, 2, 1, num_kv_heads, capacity, head_dim]`, keys before values."""
        return self.num_layers, 2, 1, self.num_kv_heads, capacity, self.head_dim


class BufferKV:
    """For models run by our decoder: one buffer written in place, so that forgetting is setting a length."""

    def __init__(self, layout: Layout) -> None:
        self.num_tokens = 0
        self.num_mirrored = 0
        """So many of the first tokens are in a CUDA graph's buffer too, if that graph served this sequence last."""
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
        """Room for another sequence."""
        return type(self)(self._layout)

    def copy(self, num_tokens: int) -> Self:
        twin = self.new()
        twin.reserve(num_tokens)
        twin.stretch(0, num_tokens).copy_(self.stretch(0, num_tokens))
        twin.num_tokens = num_tokens
        return twin

    def per_layer(self) -> Iterator[tuple[Tensor, Tensor]]:
        return ((layer[0], layer[1]) for layer in self.stretch(0, self.num_tokens))

    def reserve(self, num_tokens: int) -> None:
        """Make room for `num_tokens` tokens in all."""
        if num_tokens <= self.capacity:
            return
        old = self.stretch(0, self.num_tokens)
        self._buffer = self._buffer.new_empty(self._layout.shape(self._layout.capacity(num_tokens)))
        self.stretch(0, self.num_tokens).copy_(old)

    def stretch(self, start: int, end: int) -> Tensor:
        """A view of tokens `start` to `end`, to be read or written: see `Layout.shape`."""
        return self._buffer.narrow(4, start, end - start)
