"""What a checkpoint says of itself, whichever engine runs it: its tokenizer, its fingerprints, its facts."""

import hashlib
import json
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
"""Of each weight file, the header's neighbourhood and the end are digested: enough to tell two trainings apart
without reading 60 GB."""


def load_tokenizer(name: str, revision: str | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer exactly as its tokenizer.json says.

    AutoTokenizer prefers a class chosen by the model's type, which for Qwen2 rebuilds the pipeline in code and ignores
    the file's own.
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
    """What a service says of a checkpoint. `max_context_tokens` caps the model's own window."""
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
    )


def eos_ids(generation_config: GenerationConfig | None, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The tokens that end a sequence. Raises: Mismatch when neither names one."""
    configured = getattr(generation_config, "eos_token_id", None)
    if configured is None:
        configured = tokenizer.eos_token_id
    if configured is None:
        raise Mismatch("the model names no end-of-sequence token; set eos_token_id in generation_config.json")
    return frozenset(configured if isinstance(configured, list) else [configured])


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Digest of the vocabulary, added tokens included: equal fingerprints read each other's token ids."""
    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items()), ensure_ascii=True)
    return _short(hashlib.sha256(vocabulary.encode()))


def model_fingerprint(model: str, revision: str | None) -> str:
    """Digest of configuration and (sampled) weights of a checkpoint, in a folder or in the hub's cache."""
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
