"""Models of a given shape with random weights, created on the device without a checkpoint."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from semspec import __version__
from semspec.bench.gpu.shapes import Shape
from semspec.engine.causal_lm import CausalLM
from semspec.engine.cuda_graph import MAX_TOKENS
from semspec.engine.kv_cache import KV, BufferKV
from semspec.types import Context, ModelInfo, Piece

TOKENIZER = "numbers"


class NumberTokenizer:
    """A stub tokenizer: tokens have no text, so that segments end only by length."""

    eos_token_id = None

    def decode(self, tokens: Sequence[int], **_: object) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class Model:
    lm: CausalLM
    shape: Shape


@dataclass(frozen=True, slots=True)
class Pair:
    draft: Model
    target: Model


def build(shape: Shape, device: torch.device, window: int, dtype: torch.dtype = torch.bfloat16) -> Model:
    """A model with transformers' random initial weights."""
    torch.manual_seed(shape.num_layers)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model: PreTrainedModel = Qwen2ForCausalLM(_config(shape, window))
    finally:
        torch.set_default_dtype(before)
    model.generation_config.eos_token_id = shape.vocab_size  # never sampled
    info = ModelInfo(shape.name, shape.name, TOKENIZER, shape.num_layers, shape.hidden_size, window, build=__version__)
    lm = CausalLM(model, NumberTokenizer(), info, "fast")
    if device.type == "cuda":
        torch.cuda.empty_cache()  # fusing the projections fragments memory
    return Model(lm, shape)


def _config(shape: Shape, window: int) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        max_position_embeddings=window,
        rope_theta=shape.rope_theta,
        tie_word_embeddings=False,
        use_sliding_window=False,
        bos_token_id=None,
        eos_token_id=None,
    )


def random_tokens(num_tokens: int, vocab_size: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = torch.randint(vocab_size, (num_tokens,), generator=generator).tolist()
    return tokens


def random_context(num_tokens: int, vocab_size: int, seed: int = 0) -> Context:
    return Context((Piece("", tuple(random_tokens(num_tokens, vocab_size, seed)), TOKENIZER),))


def filled(model: Model, num_tokens: int, *, graphed: bool) -> KV:
    """Keys and values of a random context; without `graphed`, in a buffer too long for any CUDA graph."""
    kv = model.lm.new_kv()
    if not graphed and isinstance(kv, BufferKV):
        kv.reserve(MAX_TOKENS + 1)
    model.lm.forward(random_tokens(num_tokens, model.shape.vocab_size), kv)
    return kv


def was_graphed(kv: KV) -> bool:
    """Whether the last forward of this sequence ran by a CUDA graph."""
    return isinstance(kv, BufferKV) and kv.num_mirrored > 0
