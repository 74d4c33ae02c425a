"""From states and surprisal to the vector a probe sees."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from semspec.errors import InvalidRequest
from semspec.types import SURPRISAL_FEATURES

FeatureSet = Literal["states", "states+surprisal", "surprisal"]
LayerSet = Literal["all", "last"] | tuple[int, ...]
"""Which rows of the states: 0 is the input of the first block, n the output of block n."""


def layer_indices(layers: LayerSet, num_layers_plus_one: int) -> tuple[int, ...]:
    """The rows of the states that `layers` names. Raises: InvalidRequest when they have no such rows."""
    if layers == "all":
        return tuple(range(num_layers_plus_one))
    if layers == "last":
        return (num_layers_plus_one - 1,)
    if isinstance(layers, str) or not layers or any(not 0 <= index < num_layers_plus_one for index in layers):
        raise InvalidRequest(
            f"layers {layers!r} of states that have layers 0 to {num_layers_plus_one - 1}; "
            'name some of these, or "all", or "last"',
            "layers",
        )
    return layers


def num_features(features: FeatureSet, layers: LayerSet, shape: tuple[int, int]) -> int:
    """Width of the vector for states of `shape` = (num_layers + 1, hidden_size)."""
    num_states = 0 if features == "surprisal" else shape[1] * len(layer_indices(layers, shape[0]))
    return num_states + (0 if features == "states" else len(SURPRISAL_FEATURES))


def assemble(features: FeatureSet, layers: LayerSet, states: Tensor, surprisal: Tensor | None) -> Tensor:
    """`[num_segments, num_features]` fp32 from states `[num_segments, num_layers + 1, hidden_size]` and surprisal
    `[num_segments, num_surprisal_features]`."""
    parts: list[Tensor] = []
    if features != "surprisal":
        chosen = states if layers == "all" else states[:, list(layer_indices(layers, states.shape[1]))]
        parts.append(chosen.flatten(1))
    if features != "states":
        if surprisal is None:
            raise ValueError(f"features {features!r} need surprisal statistics")
        parts.append(surprisal)
    return torch.cat([part.float() for part in parts], 1)


def tensor_of(data: Sequence[bytes], shape: tuple[int, int]) -> Tensor:
    """`[num_segments, *shape]` from little-endian fp32 buffers."""
    return torch.frombuffer(bytearray(b"".join(data)), dtype=torch.float32).view(len(data), *shape)
