"""Pairs of checkpoints with true shapes and random weights, their tokenizers, and random probes for them."""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch import Tensor
from transformers import AutoConfig, GenerationConfig, PreTrainedTokenizerFast

from semspec.engine.checkpoint import load_tokenizer, model_info
from semspec.probes.probe import FeatureSet, LayerSet, Probe, ProbeCard, num_features, save_probe
from semspec.probes.verifier import ProbeVerifier
from semspec.release import Release, ReleasedModel
from semspec.types import Segmentation
from semspec_bench.gpu.engines import config_of
from semspec_bench.gpu.shapes import Shape
from semspec_demo.tokenizer import FILE

TEMPERATURE = 0.6
LOGITS_DEVIATION = 0.7
NUM_ORDINARY = 151_643
"""Ordinary tokens of Qwen2's tokenizers."""
_PIECE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SHARED = (
    "<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> "
    "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|>"
).split()
R1_END, R1_BEGIN = "<\uff5cend▁of▁sentence\uff5c>", "<\uff5cbegin▁of▁sentence\uff5c>"
_USER, _ASSISTANT = "<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>"
R1_ADDED = [R1_END, _USER, _ASSISTANT, R1_BEGIN, "<|EOT|>", "<think>", "</think>", *_SHARED]
QWQ_ADDED = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", *_SHARED, "<tool_response>", "</tool_response>", "<think>", "</think>",
]  # fmt: skip
"""Added tokens in the order of their ids, from `NUM_ORDINARY` on."""
R1_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{{ message['content'] }}"
    f"{{% elif message['role'] == 'user' %}}{_USER}{{{{ message['content'] }}}}{{% else %}}{_ASSISTANT}"
    "{{ message['content'].split('</think>')[-1] + eos_token }}{% endif %}{% endfor %}"
    f"{{% if add_generation_prompt %}}{_ASSISTANT}<think>\n{{% endif %}}"
)
QWQ_TEMPLATE = """\
{% if tools %}<|im_start|>system
# Tools

You are provided with function signatures within <tools></tools> XML tags:
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message['role'] }}
{{ (message['content'] or '').split('</think>')[-1] }}{% for call in message['tool_calls'] or [] %}
<tool_call>
{"name": "{{ call['function']['name'] }}", "arguments": {{ call['function']['arguments'] | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
<think>
{% endif %}"""


def qwen_tokenizer(added: Sequence[str], template: str) -> PreTrainedTokenizerFast:
    """A byte-level BPE of Qwen2's class and size, with the first added token, or `<|im_end|>`, at the end of a turn:
    the demo's merges, then merges of two of its tokens of letters."""
    model = json.loads(FILE.read_text())["model"]
    ordinary = [
        token
        for token in model["vocab"]
        if not any(part in token for part in (*R1_ADDED, *QWQ_ADDED))
    ]
    merges: list[tuple[str, str]] = [(a, b) for a, b in model["merges"] if a + b in ordinary]
    vocabulary = {token: number for number, token in enumerate(ordinary)}
    letters = [token for token in ordinary if token.isascii() and token.isalpha()]
    starts = [token for token in ordinary if token.removeprefix("Ġ") in letters]
    for pair in product(starts, letters):
        if len(vocabulary) < NUM_ORDINARY and "".join(pair) not in vocabulary:
            vocabulary["".join(pair)] = len(vocabulary)
            merges.append(pair)
    if len(vocabulary) < NUM_ORDINARY:
        raise ValueError(
            f"{len(starts)} x {len(letters)} pairs give {len(vocabulary)} tokens of {NUM_ORDINARY}"
        )
    raw = Tokenizer(models.BPE(vocabulary, merges))
    raw.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(_PIECE), behavior="isolated")
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    raw.decoder = decoders.ByteLevel()
    raw.add_tokens(
        [
            AddedToken(token, normalized=False, special=token.startswith(("<|", "<\uff5c")))
            for token in added
        ]
    )
    ends = (
        {"eos_token": "<|im_end|>"}
        if "<|im_end|>" in added
        else {"eos_token": added[0], "bos_token": added[3]}
    )
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=raw, clean_up_tokenization_spaces=False, **ends
    )
    wrapped.chat_template = template
    return wrapped


def save_model(
    folder: Path,
    shape: Shape,
    window: int,
    tokenizer: PreTrainedTokenizerFast,
    shares: Mapping[str, float],
    seed: int,
) -> Path:
    """Save a Qwen2 model in bf16 that draws uniformly but for tokens that have these shares at `TEMPERATURE`; 0: never.

    The states' first dimension is constant, since no layer writes to it, and raises or lowers their logits.
    """
    torch.manual_seed(seed)
    weights = dict(_weights(shape))
    for name, weight in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight[0] = 0.0
    weights["model.embed_tokens.weight"][:, 0] = 1.0
    head = weights["lm_head.weight"]
    head[:, 0] = 0.0
    even = math.log(shape.vocab_size) + (LOGITS_DEVIATION / TEMPERATURE) ** 2 / 2
    for token, share in shares.items():
        [number] = tokenizer.encode(token, add_special_tokens=False)
        head[number, 0] = TEMPERATURE * (even + math.log(share / (1 - share))) if share else -60.0
    folder.mkdir(parents=True)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return save_rest(folder, shape, window, tokenizer)


def save_rest(folder: Path, shape: Shape, window: int, tokenizer: PreTrainedTokenizerFast) -> Path:
    """Save everything but the weights."""
    config = config_of(shape, window)
    config.eos_token_id, config.dtype = tokenizer.eos_token_id, "bfloat16"
    config.save_pretrained(folder)
    GenerationConfig(eos_token_id=tokenizer.eos_token_id).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _weights(shape: Shape) -> Iterator[tuple[str, Tensor]]:
    """Random weights: the states stay near their embeddings, whose elements have variance 1."""
    hidden, inner, kv = (
        shape.hidden_size,
        shape.intermediate_size,
        shape.num_kv_heads * shape.head_dim,
    )

    def matrix(rows: int, columns: int, gain: float) -> Tensor:
        return torch.randn(rows, columns, dtype=torch.bfloat16).mul_(gain / math.sqrt(columns))

    yield "model.embed_tokens.weight", matrix(shape.vocab_size, hidden, math.sqrt(hidden))
    for number in range(shape.num_layers):
        layer = f"model.layers.{number}"
        for name, rows in {"q": hidden, "k": kv, "v": kv}.items():
            yield f"{layer}.self_attn.{name}_proj.weight", matrix(rows, hidden, 1.0)
            yield f"{layer}.self_attn.{name}_proj.bias", torch.zeros(rows, dtype=torch.bfloat16)
        yield f"{layer}.self_attn.o_proj.weight", matrix(hidden, hidden, 0.2)
        yield f"{layer}.mlp.gate_proj.weight", matrix(inner, hidden, 1.0)
        yield f"{layer}.mlp.up_proj.weight", matrix(inner, hidden, 1.0)
        yield f"{layer}.mlp.down_proj.weight", matrix(hidden, inner, 0.2)
        for norm in ("input", "post_attention"):
            yield f"{layer}.{norm}_layernorm.weight", torch.ones(hidden, dtype=torch.bfloat16)
    yield "model.norm.weight", torch.ones(hidden, dtype=torch.bfloat16)
    yield "lm_head.weight", matrix(shape.vocab_size, hidden, LOGITS_DEVIATION)


def link_model(
    source: Path, folder: Path, shape: Shape, window: int, tokenizer: PreTrainedTokenizerFast
) -> Path:
    """The same weights under another tokenizer."""
    folder.mkdir(parents=True)
    os.link(source / "model.safetensors", folder / "model.safetensors")
    return save_rest(folder, shape, window, tokenizer)


def save_probes(pair: Path) -> None:
    """Random probes for the pair in this folder, and alternatives."""
    torch.manual_seed(4)
    probes = pair / "probes"
    _save_probes(pair, probes, "states+surprisal", "all")
    _save_probes(pair, probes / "alternatives" / "last-hidden", "states", "last")
    _save_probes(pair, probes / "alternatives" / "surprisal", "surprisal", "all")
    made = ProbeVerifier.load(probes).handshake()
    draft = ReleasedModel("../draft", made.draft_model, made.draft_tokenizer)
    target = ReleasedModel("../target", made.target_model, made.target_tokenizer)
    Release("rehearsal", "1", draft, target, {}).with_probes(made).save(probes)


def _save_probes(pair: Path, folder: Path, features: FeatureSet, layers: LayerSet) -> None:
    wanted: dict[str, FeatureSet] = {"draft": "states", "target": features}
    for role, seen in wanted.items():
        model = str(pair / role)
        info = model_info(
            model, model, AutoConfig.from_pretrained(model), load_tokenizer(model), None
        )
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
