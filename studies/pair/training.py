"""The pair's tokenizer, models of a given depth, and how they grow deeper."""

from pathlib import Path

from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from semspec.demo import training
from semspec.demo.train_models import compiled
from semspec.demo.wording import DRAFT_AUTHOR
from semspec.engine.checkpoint import load_tokenizer

MODELS = Path(__file__).with_name("models")
__all__ = ["MODELS", "build_model", "compiled", "grow", "tokenizer_of_pair"]


def tokenizer_of_pair() -> PreTrainedTokenizerFast:
    """The tokenizer of both models, whose chat template shows tools."""
    return load_tokenizer(str(MODELS / "draft"))


def build_model(num_layers: int, tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    """A new model."""
    return training.build_model(training.Recipe("", DRAFT_AUTHOR, 128, 352, 4, 0, ()), num_layers, tokenizer)


def grow(shallow: Qwen2ForCausalLM, deep: Qwen2ForCausalLM) -> None:
    """Put the layers of `shallow` first in `deep`; every other layer is a copy of its last that initially adds zero."""
    deep.model.embed_tokens.load_state_dict(shallow.model.embed_tokens.state_dict())
    deep.model.norm.load_state_dict(shallow.model.norm.state_dict())
    known = list(shallow.model.layers)
    for index, layer in enumerate(deep.model.layers):
        layer.load_state_dict(known[min(index, len(known) - 1)].state_dict())
        if index >= len(known):
            layer.self_attn.o_proj.weight.data.zero_()
            layer.mlp.down_proj.weight.data.zero_()
