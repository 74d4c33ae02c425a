"""Packed matrices as modules of a transformers model."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from semspec.engine.gguf_weights import GgufTensor

Compute = Callable[[Tensor], Tensor]
"""A function of fp32 rows, `[tokens, columns]`."""


class PackedModule(nn.Module):
    """A function of rows as a module for inputs of any number of dimensions."""

    def __init__(self, compute: Compute) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, hidden: Tensor) -> Tensor:
        rows = hidden.reshape(-1, hidden.shape[-1]).contiguous()
        return self.compute(rows).view(*hidden.shape[:-1], -1)


class JointProjection(nn.Module):
    """Projections of one input that are computed together, when the first of its `parts` is called."""

    def __init__(self, compute: Compute, sizes: Sequence[int]) -> None:
        """`compute` returns all projections of rows next to one another, of these sizes."""
        super().__init__()
        self.compute = compute
        self.parts = [JointPart(self, index) for index in range(len(sizes))]
        self._sizes, self._input = list(sizes), torch.empty(0)
        self._outputs: list[Tensor] = []

    def take(self, index: int, hidden: Tensor) -> Tensor:
        """Return a projection of `hidden`. Keeps the others until the last one is taken."""
        if self._input is not hidden:
            self._outputs = list(PackedModule(self.compute)(hidden).split(self._sizes, -1))
            self._input = hidden
        output = self._outputs[index]
        if index == len(self._sizes) - 1:
            self._input, self._outputs = torch.empty(0), []
        return output


class JointPart(nn.Module):
    """One of the projections of a `JointProjection`."""

    def __init__(self, joint: JointProjection, index: int) -> None:
        super().__init__()
        self._joint, self._index = (
            [joint],
            index,
        )  # in a list, since a submodule would contain itself

    @property
    def joint(self) -> JointProjection:
        """All projections together."""
        return self._joint[0]

    def forward(self, hidden: Tensor) -> Tensor:
        return self.joint.take(self._index, hidden)


class PackedEmbedding(nn.Module):
    """Rows of a matrix in a file, dequantised when they are read."""

    def __init__(self, matrix: GgufTensor) -> None:
        super().__init__()
        self._matrix = matrix
        self.num_embeddings, self.embedding_dim = matrix.shape

    def forward(self, tokens: Tensor) -> Tensor:
        rows = torch.from_numpy(self._matrix.rows(tokens.flatten().numpy()))
        return rows.view(*tokens.shape, self.embedding_dim)
