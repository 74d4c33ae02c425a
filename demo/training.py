"""What the training of both models shares: recipes, models of a given depth, the loss."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from semspec.demo.tokenizer import WINDOW
from semspec.demo.trainer import Course
from semspec.demo.wording import Author

IGNORED = -100


@dataclass(frozen=True, slots=True)
class Stage:
    """A training stage at one depth."""

    num_layers: int
    num_steps: int
    equation_share: float
    """Share of training texts that are bare equations, in the first 60% of the stage."""
    matrix_learning_rate: float
    learning_rate: float
    batch_size: int = 32

    @property
    def course(self) -> Course:
        return Course(self.num_steps, self.matrix_learning_rate, self.learning_rate)


@dataclass(frozen=True, slots=True)
class Recipe:
    """The training recipe of one model of the pair."""

    name: str
    author: Author
    hidden_size: int
    intermediate_size: int
    num_heads: int
    first_seed: int
    """The first problem seed of the training split this model sees."""
    stages: tuple[Stage, ...]


def build_model(recipe: Recipe, num_layers: int, tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    """A new Qwen2 model, initialised so that many layers train well."""
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.intermediate_size,
        num_hidden_layers=num_layers,
        num_attention_heads=recipe.num_heads,
        num_key_value_heads=recipe.num_heads,
        max_position_embeddings=WINDOW,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen2ForCausalLM(config)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            is_output = name.endswith(("o_proj.weight", "down_proj.weight"))
            gain = 1 / math.sqrt(2 * num_layers) if is_output else 0.7
            std = 0.02 if "embed" in name else gain / math.sqrt(parameter.shape[1])
            torch.nn.init.normal_(parameter, 0, std)
    return model


def grow(shallow: Qwen2ForCausalLM, deep: Qwen2ForCausalLM) -> None:
    """Distribute the layers of `shallow` over `deep`; every inserted copy initially adds zero."""
    deep.model.embed_tokens.load_state_dict(shallow.model.embed_tokens.state_dict())
    deep.model.norm.load_state_dict(shallow.model.norm.state_dict())
    factor = len(deep.model.layers) // len(shallow.model.layers)
    for index, layer in enumerate(deep.model.layers):
        layer.load_state_dict(shallow.model.layers[index // factor].state_dict())
        if index % factor:
            layer.self_attn.o_proj.weight.data.zero_()
            layer.mlp.down_proj.weight.data.zero_()


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts, each `[batch, length]`."""

    ids: Tensor
    labels: Tensor
    weights: Tensor


def loss_of(model: Qwen2ForCausalLM, batch: Batch) -> Tensor:
    """Weighted cross-entropy of the next token."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(input_ids=batch.ids, use_cache=False).logits
    losses = torch.nn.functional.cross_entropy(
        logits[:, :-1].float().flatten(0, 1), batch.labels[:, 1:].flatten(), ignore_index=IGNORED, reduction="none"
    )
    weights = batch.weights[:, 1:].flatten()
    return (losses * weights).sum() / weights.sum()
