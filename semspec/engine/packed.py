"""Packed matrices as modules of a transformers model."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from semspec.engine.gguf_weights import GgufTensor

Compute = Callable[[Tensor], Tensor]
"""A function of fp32 rows, `[tokens, columns]`."""
FinishLayer = Callable[[Tensor, Tensor], list[Tensor]]
"""From a layer's input and its attention's output to its output and, unless it is the last layer, the next one's
queries, keys and values next to one another. All are fp32 rows of tokens."""


class PackedModule(nn.Module):
    """A function of rows as a module for inputs of any number of dimensions."""

    def __init__(self, compute: Compute) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, hidden: Tensor) -> Tensor:
        rows = hidden.reshape(-1, hidden.shape[-1]).contiguous()
        return self.compute(rows).view(*hidden.shape[:-1], -1)


class Columns(nn.Module):
    """A projection that is some columns of its input, where all projections are computed together."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__()
        self._columns = slice(start, end)

    def forward(self, projections: Tensor) -> Tensor:
        return projections[..., self._columns]


class PackedLayer(nn.Module):
    """A layer that computes together with the beginning of the next one, up to its attention."""

    def __init__(
        self,
        attention: nn.Module,
        sizes: Sequence[int],
        start: Compute | None,
        finish: FinishLayer,
        carried: list[Tensor],
    ) -> None:
        """`attention`: transformers' module; `sizes`: columns of queries, keys and values; `start`: of the first
        layer; `carried`: a list that all layers of a model share."""
        super().__init__()
        ends = [*accumulate(sizes)]
        parts = [Columns(end - size, end) for size, end in zip(sizes, ends, strict=True)]
        attention.q_proj, attention.k_proj, attention.v_proj = parts
        attention.o_proj = nn.Identity()
        self.self_attn, self._start, self._finish = attention, start, finish
        self._carried = carried

    def qkv(self, hidden: Tensor) -> Tensor:
        """Return queries, keys and values of rows, which the layer before has computed."""
        if self._start:
            self._carried[:] = [self._start(hidden)]
        return self._carried.pop()

    def finish(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """Return the layer's output from its input and its attention's output, rows all."""
        hidden, *self._carried[:] = self._finish(hidden, attended)
        return hidden

    def forward(self, hidden_states: Tensor, **options: Any) -> Tensor:
        """Return the output of `hidden_states`, `[batch, length, hidden_size]`, with transformers' attention."""
        shape = hidden_states.shape
        rows = hidden_states.reshape(-1, shape[-1]).contiguous()
        projections = self.qkv(rows).view(*shape[:-1], -1)
        attended, _ = self.self_attn(hidden_states=projections, **options)
        return self.finish(rows, attended.reshape(len(rows), -1)).view(shape)


class PackedEmbedding(nn.Module):
    """Rows of a matrix in a file, dequantised when they are read."""

    def __init__(self, matrix: GgufTensor) -> None:
        super().__init__()
        self._matrix = matrix
        self.num_embeddings, self.embedding_dim = matrix.shape

    def forward(self, tokens: Tensor) -> Tensor:
        rows = torch.from_numpy(self._matrix.rows(tokens.flatten().numpy()))
        return rows.view(*tokens.shape, self.embedding_dim)
