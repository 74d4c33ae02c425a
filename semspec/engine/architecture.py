"""Architectures of language models: which of them run without vLLM, and how long their contexts may be."""

import logging
from collections.abc import Mapping
from typing import Any

from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    DynamicCache,
    PretrainedConfig,
    PreTrainedModel,
)

from semspec.errors import Mismatch

UNBOUNDED = 1 << 20
"""Context window, in tokens, of a model whose configuration states none."""

CROPPABLE_LAYERS = frozenset({"DynamicLayer", "DynamicSlidingWindowLayer", "DummyLayer"})
"""Names of transformers' cache layers with only keys and values, from which the last tokens can be removed. Names,
because older versions lack one of these classes."""

LENGTH_DEPENDENT_ROPES = frozenset({"dynamic", "longrope"})
"""Rotary embeddings that rotate all tokens in another way once a context exceeds the trained window. Then cached keys
would be wrong, and a text would have other probabilities when scored than when it was written."""

logger = logging.getLogger(__name__)


def check_architecture(name: str, config: PretrainedConfig) -> None:
    """Check that the engines transformers and fast can run the model `name`. Raises: Mismatch with a remedy."""
    if refusal := _refusal(config):
        reason, remedy = refusal
        raise Mismatch(f"cannot load model {name!r}: {reason}", remedy=remedy)


def _refusal(config: PretrainedConfig) -> tuple[str, str] | None:
    """Return why these engines cannot run a model, and a remedy; None if they can."""
    kind = (config.architectures or [type(config).__name__])[0]
    if method := _quantization(config):
        reason = f"its weights are quantised ({method}), which the engines transformers and fast do not run"
        return reason, "set the engine to vllm on a GPU, or give the unquantised checkpoint"
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        reason = f"transformers has no causal language model for {kind}"
        return reason, "give a checkpoint of a language model alone"
    if _keeps_other_state(config):
        reason = f"{kind} keeps a state that cannot be rolled back to an earlier token, such as a recurrent one"
        return reason, "give a model whose layers are all attention with keys and values"
    return None


def _quantization(config: PretrainedConfig) -> str | None:
    """Return the method by which the weights are quantised; None if they are not."""
    for part in (config, config.get_text_config()):
        if stated := getattr(part, "quantization_config", None):
            fields = stated if isinstance(stated, Mapping) else stated.to_dict()
            return str(fields.get("quant_method") or "by an unknown method")
    return None


def _keeps_other_state(config: PretrainedConfig) -> bool:
    """Whether a layer keeps more than keys and values, such as the state of a recurrence or a convolution."""
    model: type[PreTrainedModel] = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return model._is_stateful or any(
        type(layer).__name__ not in CROPPABLE_LAYERS for layer in DynamicCache(config=config).layers
    )


def context_window(config: PretrainedConfig) -> int:
    """Return the longest context of a model, in tokens.

    - `max_position_embeddings` is the window of most models, also of those with the rotary embedding llama3.
    - yarn and linear stretch the trained window by their factor. Models with several rotary embeddings, such as
      Gemma 3, name the stretched window in `max_position_embeddings`, unless yarn names the trained one.
    - dynamic and longrope end at the trained window, see `LENGTH_DEPENDENT_ROPES`.
    """
    stated = int(getattr(config.get_text_config(), "max_position_embeddings", 0) or UNBOUNDED)
    rotaries = rotary_embeddings(config)
    window = min(
        (_rotary_window(rotary, stated, len(rotaries) == 1) for rotary in rotaries), default=stated
    )
    if kinds := sorted({rotary["rope_type"] for rotary in rotaries} & LENGTH_DEPENDENT_ROPES):
        reason = f"the rotary embedding {kinds[0]} changes earlier keys in longer contexts"
        logger.warning(
            "contexts are limited to the trained window of %d tokens: %s", window, reason
        )
    return window


def rotary_embeddings(config: PretrainedConfig) -> list[Mapping[str, Any]]:
    """Return the parameters of each kind of rotary embedding in a model, whose layers may have several kinds."""
    parameters = getattr(config.get_text_config(), "rope_parameters", None) or {}
    by_layer_type = [part for part in parameters.values() if isinstance(part, Mapping)]
    return by_layer_type or ([parameters] if parameters else [])


def _rotary_window(rotary: Mapping[str, Any], stated: int, is_only: bool) -> int:
    """Return the window of a rotary embedding, in tokens; `stated`: `max_position_embeddings`."""
    kind, factor = rotary["rope_type"], rotary.get("factor")
    trained = int(rotary.get("original_max_position_embeddings") or stated)
    if factor and (kind == "yarn" or (kind == "linear" and is_only)):
        return int(trained * float(factor))
    return min(trained, stated) if kind == "longrope" else stated
