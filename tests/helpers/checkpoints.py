"""Tiny checkpoints with random weights of common model classes, and matching probes."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from semspec.engine.torch_engine import TorchEngine
from semspec.probes.probe import FeatureSet, LayerSet, Probe, ProbeCard, num_features, save_probe
from semspec.probes.verifier import ProbeVerifier
from semspec.protocols import Engine
from semspec.release import Release, ReleasedModel
from semspec.types import Segmentation, Writer
from tests.helpers.words import build_tokenizer

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def edit_json(path: Path, **values: object) -> None:
    """Change members of the object in a file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def model_of(architecture: str, **changes: object) -> PreTrainedModel:
    """A Qwen2 or Llama model of `SIZES` over the demo language's vocabulary."""
    common = {
        "vocab_size": len(build_tokenizer()),
        "eos_token_id": 1,
        "max_position_embeddings": 600,
        **SIZES,
    }
    if architecture == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(**common | changes))
    return LlamaForCausalLM(LlamaConfig(**common | changes))


def randomise(model: PreTrainedModel, deviation: float = 0.2) -> PreTrainedModel:
    """Draw all weights of `model`, norms and biases included."""
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 1.0 if parameter.dim() == 1 else 0.0, deviation)
    return model


def save_checkpoints(folder: Path) -> dict[str, Path]:
    """Save a Qwen2 and a Llama model; returns their folders."""
    torch.manual_seed(0)
    models = {name: model_of(name, bos_token_id=None) for name in ("qwen2", "llama")}
    for name, model in models.items():
        randomise(model).save_pretrained(folder / name)
        build_tokenizer().save_pretrained(folder / name)
    return {name: folder / name for name in models}


TOOLS_TEMPLATE = """\
{% if tools %}{{ '<tools>' }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}\
{{ '</tools> Call one: <tool_call>' }}{% endif %}\
{% for message in messages %}{{ '<' + message['role'] + '>' + (message['content'] or '') }}\
{% for call in message['tool_calls'] or [] %}{{ call | tojson }}{% endfor %}{% endfor %}{{ '<assistant>' }}"""
"""A chat template that shows tools, calls and their results."""


def spelling_tokenizer(special: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes and a few longer tokens, with marks of reasoning and calls, and `TOOLS_TEMPLATE`.
    `special`: marks of reasoning that are special tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [("t", "r"), ("u", "e"), ("tr", "ue"), ('"', ":"), ("{", '"')]
    vocabulary = {
        token: index for index, token in enumerate([*letters, *(a + b for a, b in pairs)])
    }
    raw = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(["<|endoftext|>", "<|im_end|>", *special])
    marks = (
        ("<tool_call>", "</tool_call>")
        if special
        else ("<think>", "</think>", "<tool_call>", "</tool_call>")
    )
    raw.add_tokens([AddedToken(mark, normalized=False) for mark in marks])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|endoftext|>")
    tokenizer.chat_template = TOOLS_TEMPLATE
    return tokenizer


def save_spelling_checkpoint(
    folder: Path, special: Sequence[str] = (), prompt_end: str = ""
) -> Path:
    """Save a Qwen2 model with random weights over `spelling_tokenizer`, whose logits are flat enough to write
    anything; returns `folder`. `prompt_end`: what the chat template ends with."""
    tokenizer = spelling_tokenizer(special)
    tokenizer.chat_template = TOOLS_TEMPLATE + prompt_end
    torch.manual_seed(1)
    ends = tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>"])
    sizes = {"vocab_size": len(tokenizer) + 3, "max_position_embeddings": 1200}
    randomise(
        model_of("qwen2", **sizes, eos_token_id=ends, bos_token_id=None), 0.1
    ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@asynccontextmanager
async def loaded(
    draft: Path, target: Path, **options: Any
) -> AsyncIterator[tuple[TorchEngine, TorchEngine]]:
    """Both models in this process; closed at the end, also of a test that fails."""
    one = TorchEngine.load(str(draft), writer=Writer.DRAFT, device="cpu", **options)
    other = TorchEngine.load(str(target), writer=Writer.TARGET, device="cpu", **options)
    async with aclosing(one), aclosing(other):
        yield one, other


async def random_probes(draft: Engine, target: Engine, folder: Path) -> ProbeVerifier:
    """Probes that accept some and reject some, with alternatives, saved in `folder` as a release."""
    torch.manual_seed(4)
    alternatives = folder / "alternatives"
    await _save_random(draft, target, folder, "states+surprisal", "all")
    await _save_random(draft, target, alternatives / "last-hidden", "states", "last")
    await _save_random(draft, target, alternatives / "surprisal", "surprisal", "all")
    verifier = ProbeVerifier.load(folder)
    first, second = (
        ReleasedModel(info.model, info.fingerprint, info.tokenizer, dtype="float32")
        for info in (await draft.info(), await target.info())
    )
    Release("semspec-demo", "1", first, second, {}).with_probes(verifier.handshake()).save(folder)
    return verifier


async def _save_random(
    draft: Engine, target: Engine, folder: Path, features: FeatureSet, layers: LayerSet
) -> None:
    wanted: tuple[tuple[str, Engine, FeatureSet], ...] = (
        ("draft", draft, "states"),
        ("target", target, features),
    )
    for role, engine, seen in wanted:
        info = await engine.info()
        shape, every = (info.num_layers + 1, info.hidden_size), tuple(Segmentation)
        card = ProbeCard(
            info.model,
            info.fingerprint,
            info.tokenizer,
            shape,
            seen,
            layers,
            every,
            "cross",
            "none",
        )
        save_probe(Probe(num_features(seen, layers, shape)), card, folder / f"{role}.safetensors")
