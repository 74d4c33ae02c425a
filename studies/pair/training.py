"""Models of a given depth, how they grow deeper, and what makes their training fast on a CPU."""

import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from semspec_demo.tokenizer import WINDOW

HIDDEN, INTERMEDIATE, NUM_HEADS = 128, 352, 4
BLOCK = 200


def attention(
    module: torch.nn.Module,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scaling: float,
    **_: object,
) -> tuple[Tensor, None]:
    """Causal attention in bfloat16 by matrix products over blocks of `BLOCK` queries, each with the keys up to its end:
    on CPUs its backward pass is faster than the fused one's.

    `q`, `k`, `v`: `[batch, heads, length, head_size]`. Padding stands on the right, where no token attends to it.
    """
    batch, heads, length, size = q.shape
    with torch.autocast("cpu", enabled=False):
        q, k, v = (
            x.to(torch.bfloat16).reshape(batch * heads, length, size) for x in (q * scaling, k, v)
        )
        mixed: list[Tensor] = []
        for first in range(0, length, BLOCK):
            end = min(first + BLOCK, length)
            causal = torch.full((end - first, end), float("-inf"), dtype=torch.bfloat16).triu(
                first + 1
            )
            masks = causal.expand(batch * heads, end - first, end)
            scores = torch.baddbmm(masks, q[:, first:end], k[:, :end].transpose(1, 2))
            mixed.append(torch.bmm(torch.softmax(scores, -1), v[:, :end]))
    return torch.cat(mixed, 1).view(batch, heads, length, size).transpose(1, 2).contiguous(), None


AttentionInterface.register("semspec_training", attention)


def build_model(num_layers: int, tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    """A new Qwen2 model, initialised so that many layers train well."""
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=num_layers,
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=NUM_HEADS,
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
    """Put the layers of `shallow` first in `deep`; every other layer is a copy of its last that initially adds zero."""
    deep.model.embed_tokens.load_state_dict(shallow.model.embed_tokens.state_dict())
    deep.model.norm.load_state_dict(shallow.model.norm.state_dict())
    known = list(shallow.model.layers)
    for index, layer in enumerate(deep.model.layers):
        layer.load_state_dict(known[min(index, len(known) - 1)].state_dict())
        if index >= len(known):
            layer.self_attn.o_proj.weight.data.zero_()
            layer.mlp.down_proj.weight.data.zero_()


@contextmanager
def compiled(model: Qwen2ForCausalLM) -> Iterator[None]:
    """Use our attention and, with g++, compiled layers on a CPU, which takes less than half the time."""
    if model.device.type == "cpu":
        model.set_attn_implementation("semspec_training")
        for layer in model.model.layers if shutil.which("g++") else ():
            layer.compile(dynamic=True)
    yield
    model.set_attn_implementation("sdpa")
