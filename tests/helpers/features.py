"""Features of probes from whole states, to compare with what the product reads in parts."""

import torch
from torch import Tensor

from semspec.probes.probe import FeatureSet, LayerSet, layer_indices


def assemble(
    features: FeatureSet, layers: LayerSet, states: Tensor, surprisal: Tensor | None
) -> Tensor:
    """Return features, fp32 `[num_segments, num_features]`.

    `states`: `[num_segments, num_layers + 1, hidden_size]`; `surprisal`: `[num_segments, num_surprisal_features]`.
    """
    parts: list[Tensor] = []
    if features != "surprisal":
        chosen = (
            states if layers == "all" else states[:, list(layer_indices(layers, states.shape[1]))]
        )
        parts.append(chosen.flatten(1))
    if features != "states":
        if surprisal is None:
            raise ValueError(f"features {features!r} need surprisal statistics")
        parts.append(surprisal)
    return torch.cat([part.float() for part in parts], 1)
