"""Digests that say whether two processes mean the same model and the same tokenizer."""

import hashlib
import json
from pathlib import Path

from transformers import PreTrainedTokenizerBase
from transformers.utils import cached_file

SAMPLE_BYTES = 1 << 20
"""Of each weight file, the header's neighbourhood and the end are digested: enough to tell two trainings apart
without reading 60 GB."""


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
