"""Tiny models in memory, one for each thing a decoder may get wrong."""

import copy

import torch
from transformers import PreTrainedModel

from semspec.engine.causal_lm import CausalLM, EngineName
from semspec.engine.tokenization import ModelTokenizer
from semspec.types import ModelInfo
from tests.helpers.checkpoints import model_of, randomise
from tests.helpers.words import build_tokenizer

WINDOW = 600
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 150,
}
DYNAMIC_ROPE = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
WINDOWED: dict[str, object] = {
    "use_sliding_window": True,
    "sliding_window": 16,
    "max_window_layers": 1,
}

TOKENIZER = build_tokenizer()


def random_model(architecture: str, **changes: object) -> PreTrainedModel:
    """The same model at each call."""
    torch.manual_seed(0)
    return randomise(model_of(architecture, **changes))


def lm_of(model: PreTrainedModel, engine: EngineName) -> CausalLM:
    """`model` behind an engine; the caller's own stays as it is."""
    config = model.config
    shape = (config.num_hidden_layers, config.hidden_size)
    info = ModelInfo("tiny", "fingerprint", "tokenizer", *shape, WINDOW, "build")
    tokenizer = ModelTokenizer(
        TOKENIZER, info, frozenset({1}), model.get_input_embeddings().num_embeddings
    )
    return CausalLM(copy.deepcopy(model), tokenizer, engine)


def random_ids(num_tokens: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(2, len(TOKENIZER), (num_tokens,), generator=generator).tolist()
    return ids
