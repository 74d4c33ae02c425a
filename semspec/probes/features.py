"""From states and surprisal to the vector a probe sees."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from semspec.core import SURPRISAL_FEATURES

FeatureSet = Literal["states", "states+surprisal", "surprisal"]
LayerSet = Literal["all", "last"]


def num_features(features: FeatureSet, layers: LayerSet, shape: tuple[int, int]) -> int:
    """Width of the vector for states of `shape` = (num_layers + 1, hidden_size)."""
    num_states = 0 if features == "surprisal" else shape[1] * (shape[0] if layers == "all" else 1)
    return num_states + (0 if features == "states" else len(SURPRISAL_FEATURES))


def assemble(features: FeatureSet, layers: LayerSet, states: Tensor, surprisal: Tensor | None) -> Tensor:
    """`[num_segments, num_features]` fp32 from states `[num_segments, num_layers + 1, hidden_size]` and surprisal
    `[num_segments, num_surprisal_features]`."""
    parts: list[Tensor] = []
    if features != "surprisal":
        parts.append(states.flatten(1) if layers == "all" else states[:, -1])
    if features != "states":
        if surprisal is None:
            raise ValueError(f"features {features!r} need surprisal statistics")
        parts.append(surprisal)
    return torch.cat([part.float() for part in parts], 1)


def tensor_of(data: Sequence[bytes], shape: tuple[int, int]) -> Tensor:
    """`[num_segments, *shape]` from little-endian fp32 buffers."""
    return torch.frombuffer(bytearray(b"".join(data)), dtype=torch.float32).view(len(data), *shape)
