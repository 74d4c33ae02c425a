"""Tokenizer, fingerprints and metadata of a checkpoint, independent of the engine."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from transformers import (
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.utils import cached_file

from semspec import __version__
from semspec.engine.tokenization import can_be_asked
from semspec.errors import Mismatch
from semspec.types import ModelInfo

SAMPLE_BYTES = 1 << 20
"""The digest covers this many bytes at the start and at the end of each weight file: enough to distinguish two
trainings without reading 60 GB."""


def load_tokenizer(name: str, revision: str | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer exactly as defined in tokenizer.json.

    AutoTokenizer prefers a class chosen by the model type. For Qwen2 that class builds its own pipeline and ignores the
    one in the file.
    """
    has_file = cached_file(name, "tokenizer.json", revision=revision, _raise_exceptions_for_missing_entries=False)
    loader = PreTrainedTokenizerFast if has_file else AutoTokenizer
    tokenizer: PreTrainedTokenizerBase = loader.from_pretrained(name, revision=revision, trust_remote_code=False)
    return tokenizer


def model_info(
    name: str,
    revision: str | None,
    config: PretrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    max_context_tokens: int | None,
) -> ModelInfo:
    """`ModelInfo` of a checkpoint. `max_context_tokens` caps the model's context window."""
    text_config = config.get_text_config()
    window = int(getattr(text_config, "max_position_embeddings", 0) or 1 << 20)
    return ModelInfo(
        model=Path(name).name if Path(name).exists() else name,
        fingerprint=model_fingerprint(name, revision),
        tokenizer=tokenizer_fingerprint(tokenizer),
        num_layers=int(text_config.num_hidden_layers),
        hidden_size=int(text_config.hidden_size),
        max_context_tokens=min(window, max_context_tokens or window),
        build=__version__,
        can_be_asked=can_be_asked(tokenizer),
        chat_template=chat_template_digest(tokenizer),
    )


def eos_ids(generation_config: GenerationConfig | None, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The end-of-sequence tokens. Raises: Mismatch when neither configuration nor tokenizer has one."""
    configured = getattr(generation_config, "eos_token_id", None)
    if configured is None:
        configured = tokenizer.eos_token_id
    if configured is None:
        raise Mismatch("the model names no end-of-sequence token; set eos_token_id in generation_config.json")
    return frozenset(configured if isinstance(configured, list) else [configured])


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """`ORDINARY.ADDED`: digests of the ordinary and of the added tokens, each with their ids.

    Equal fingerprints mean interchangeable token ids; see `semspec.types.shares_ordinary_tokens` for equal first parts.
    """
    added = tokenizer.get_added_vocab()
    ordinary = {token: id for token, id in tokenizer.get_vocab().items() if token not in added}
    return f"{_vocabulary_digest(ordinary)}.{_vocabulary_digest(added)}"


def _vocabulary_digest(vocabulary: Mapping[str, int]) -> str:
    return _short(hashlib.sha256(json.dumps(sorted(vocabulary.items()), ensure_ascii=True).encode()))


def chat_template_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """Digest of the chat template and of the special tokens it may name; empty if there is no template."""
    if tokenizer.chat_template is None:
        return ""
    rendered_with = json.dumps([tokenizer.chat_template, tokenizer.special_tokens_map], sort_keys=True, default=str)
    return _short(hashlib.sha256(rendered_with.encode()))


def model_fingerprint(model: str, revision: str | None) -> str:
    """Digest of configuration and sampled weights of a checkpoint, in a folder or the hub's cache."""
    config = cached_file(model, "config.json", revision=revision)
    if config is None:
        raise FileNotFoundError(f"{model} has no config.json")
    folder = Path(config).parent
    digest = hashlib.sha256(Path(config).read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(f"{path.name} {path.stat().st_size}".encode())
        digest.update(_sample(path))
    return _short(digest)


def _sample(path: Path) -> bytes:
    with path.open("rb") as file:
        start = file.read(SAMPLE_BYTES)
        file.seek(max(path.stat().st_size - SAMPLE_BYTES, 0))
        return start + file.read(SAMPLE_BYTES)


def _short(digest: "hashlib._Hash") -> str:
    return digest.hexdigest()[:16]
