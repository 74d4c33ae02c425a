"""Modules of a transformers model that compute with packed matrices."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from semspec.engine.gguf_weights import GgufTensor

Compute = Callable[[Tensor], Tensor]
"""A function of fp32 rows `[tokens, columns]`."""
FinishLayer = Callable[[Tensor, Tensor], list[Tensor]]
"""Computes, from a layer's input and its attention's output, the layer's output and the concatenated queries, keys and
values of the next layer, if there is one. All are fp32 rows of tokens."""


class PackedLinear(nn.Module):
    """A matrix product of rows as a module, for inputs with any number of dimensions."""

    def __init__(self, compute: Compute) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, hidden: Tensor) -> Tensor:
        rows = hidden.reshape(-1, hidden.shape[-1]).contiguous()
        return self.compute(rows).view(*hidden.shape[:-1], -1)


class ProjectionSlice(nn.Module):
    """A projection that selects its columns from its input, in which all projections are already computed."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__()
        self._columns = slice(start, end)

    def forward(self, projections: Tensor) -> Tensor:
        return projections[..., self._columns]


class PackedLayer(nn.Module):
    """A layer whose last computation includes the queries, keys and values of the next layer."""

    def __init__(
        self,
        attention: nn.Module,
        sizes: Sequence[int],
        start: Compute | None,
        finish: FinishLayer,
        next_qkv: list[Tensor],
    ) -> None:
        """`attention`: transformers' module; `sizes`: columns of queries, keys and values; `start`: computes these in
        the first layer; `next_qkv`: a list that all layers share, by which they pass them on."""
        super().__init__()
        ends = [*accumulate(sizes)]
        parts = [ProjectionSlice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
        attention.q_proj, attention.k_proj, attention.v_proj = parts
        attention.o_proj = nn.Identity()
        self.self_attn, self._start, self._finish = attention, start, finish
        self._next_qkv = next_qkv

    def qkv(self, hidden: Tensor) -> Tensor:
        """Return the queries, keys and values of rows, which the previous layer has computed."""
        if self._start:
            self._next_qkv[:] = [self._start(hidden)]
        return self._next_qkv.pop()

    def finish(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """Return the layer's output from its input and its attention's output, all as rows."""
        hidden, *self._next_qkv[:] = self._finish(hidden, attended)
        return hidden

    def forward(self, hidden_states: Tensor, **options: Any) -> Tensor:
        """Return the output of `hidden_states`, `[batch, length, hidden_size]`, with transformers' attention."""
        shape = hidden_states.shape
        rows = hidden_states.reshape(-1, shape[-1]).contiguous()
        projections = self.qkv(rows).view(*shape[:-1], -1)
        attended, _ = self.self_attn(hidden_states=projections, **options)
        return self.finish(rows, attended.reshape(len(rows), -1)).view(shape)


class PackedEmbedding(nn.Module):
    """An embedding whose rows are dequantised from a file when they are used."""

    def __init__(self, matrix: GgufTensor) -> None:
        super().__init__()
        self._matrix = matrix
        self.num_embeddings, self.embedding_dim = matrix.shape

    def forward(self, tokens: Tensor) -> Tensor:
        rows = torch.from_numpy(self._matrix.rows(tokens.flatten().numpy()))
        return rows.view(*tokens.shape, self.embedding_dim)
