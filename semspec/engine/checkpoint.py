"""Tokenizer, fingerprints and metadata of a checkpoint, independent of the engine."""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from jinja2 import TemplateSyntaxError
from safetensors import SafetensorError
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.utils.logging import disable_progress_bar

from semspec import __version__
from semspec.engine.architecture import context_window
from semspec.engine.conversation import (
    ids_after_turn,
    template_variables,
    tools_flaw,
)
from semspec.engine.digests import file_digests
from semspec.engine.gguf import is_gguf, readable_name, weights_digest
from semspec.engine.hub import fetch
from semspec.errors import Mismatch, SemspecError
from semspec.observability import adopt
from semspec.types import FINGERPRINT, ModelInfo

logger = logging.getLogger(__name__)

MALFORMED: tuple[type[Exception], ...] = (
    OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, StrictDataclassError,
    SafetensorError, RecursionError,
)  # fmt: skip
"""Errors that transformers raises if files of a checkpoint are missing, too deep, or have values of a wrong type."""


@contextmanager
def loading(name: str, revision: str | None) -> Iterator[str]:
    """Yield the folder of the checkpoint `name`, after a download if it is on the hub.

    Raises: Mismatch in one line instead of any error of the block.
    """
    adopt("transformers")
    disable_progress_bar()  # not for a log
    folder = fetch(name, revision)
    try:
        yield folder
    except SemspecError:
        raise
    except Exception as error:
        raise Mismatch(
            f"cannot load model {name!r}: {_reason(error)}", remedy=_remedy_for(error)
        ) from error


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _remedy_for(error: Exception) -> str:
    match error:
        case ImportError():
            return "install what is missing, or give a checkpoint that needs no more packages"
        case MemoryError() | torch.OutOfMemoryError():
            return "free memory, or give a smaller model"
        case _ if isinstance(error, MALFORMED):
            return (
                "give a GGUF file, or a folder, a hub id or a revision with safetensors weights and a tokenizer.json "
                "(weights in pytorch_model.bin are pickles and not loaded)"
            )
    return "give another checkpoint, or set another engine"


def load_tokenizer(folder: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a checkpoint exactly as defined in tokenizer.json.

    AutoTokenizer prefers a class chosen by the model type, which for Qwen2 ignores the pipeline in the file.

    Raises: Mismatch when the tokenizer or its chat template cannot be used; OSError or ValueError when there is none.
    """
    loader = PreTrainedTokenizerFast if Path(folder, "tokenizer.json").exists() else AutoTokenizer
    try:
        tokenizer: PreTrainedTokenizerBase = loader.from_pretrained(folder, trust_remote_code=False)
        tokenizer.encode("How many?")  # uses parts that from_pretrained does not check
    except (OSError, ValueError):
        raise
    except Exception as error:  # the Rust tokenizers raise plain exceptions
        raise Mismatch(
            f"cannot read the tokenizer of {folder}: {error}", remedy="fetch its files again"
        ) from error
    _check_tokenizer(tokenizer, folder)
    return tokenizer


def _check_tokenizer(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Raises: Mismatch when the tokenizer knows special tokens only (missing files), or its template is malformed."""
    if len(tokenizer.get_vocab()) <= len(tokenizer.all_special_tokens) + 1:
        raise Mismatch(
            f"the tokenizer of {name} knows no text",
            remedy="put the model's tokenizer.json next to its weights",
        )
    if tokenizer.chat_template is None:
        return
    try:
        template_variables(tokenizer)
        tools_flaw(tokenizer, str(tokenizer.chat_template))  # cached for requests
        tokenizer.apply_chat_template([{"role": "user", "content": "How many?"}], tokenize=False)
    except TemplateSyntaxError as error:
        message = (
            f"the chat template of {name} is malformed in line {error.lineno}: {error.message}"
        )
        raise Mismatch(message, remedy="correct it, or fetch it again") from error
    except Exception as error:  # templates may raise any error, also for a conversation like this
        logger.info(
            "the chat template of %s rejects a conversation that starts with a user turn: %s",
            name,
            error,
        )


def model_info(
    name: str,
    folder: str,
    config: PretrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    max_context_tokens: int | None,
    form: str = "",
) -> ModelInfo:
    """Return the `ModelInfo` of the checkpoint `name` in `folder`.

    `max_context_tokens` caps the model's context window; `form`: see `model_fingerprint`.
    """
    text_config, window = config.get_text_config(), context_window(config)
    return ModelInfo(
        model=_display_name(name),
        fingerprint=model_fingerprint(folder, form),
        tokenizer=tokenizer_fingerprint(tokenizer),
        num_layers=int(text_config.num_hidden_layers),
        hidden_size=int(text_config.hidden_size),
        max_context_tokens=min(window, max_context_tokens or window),
        build=__version__,
        chat_template=chat_template_digest(tokenizer),
        template_variables=tuple(sorted(template_variables(tokenizer))),
        supports_min_p=True,
    )


def _display_name(name: str) -> str:
    if is_gguf(name):
        return readable_name(name)
    return Path(name).name if Path(name).exists() else name


def generation_config(folder: str) -> GenerationConfig | None:
    """Read generation_config.json of a checkpoint; None if there is none. Raises: Mismatch when it cannot be read."""
    try:
        config: GenerationConfig = GenerationConfig.from_pretrained(folder)
    except OSError:
        return None
    except MALFORMED as error:
        raise Mismatch(
            f"cannot read generation_config.json of {folder!r}: {_reason(error)}"
        ) from error
    return config


def eos_ids(folder: str, tokenizer: PreTrainedTokenizerBase, num_embeddings: int) -> frozenset[int]:
    """Return the end-of-sequence tokens that generation_config.json, config.json or the tokenizer names.

    Any of these files may be the only one that names the end of a turn. If the chat template ends an assistant's turn
    with none of these tokens, a special token directly after the turn is included. Ids that are not below
    `num_embeddings` are left out, because the model cannot write them.

    Raises: Mismatch when there is no such token, or a file names something other than ids.
    """
    config, _ = PretrainedConfig.get_config_dict(folder)
    text_config = config.get("text_config")
    parts = [config, text_config] if isinstance(text_config, dict) else [config]
    stated = [
        *_named_ids(
            getattr(generation_config(folder), "eos_token_id", None), "generation_config.json"
        ),
        *(id for part in parts for id in _named_ids(part.get("eos_token_id"), "config.json")),
        *_named_ids(tokenizer.eos_token_id, "tokenizer_config.json"),
    ]
    after_turn = ids_after_turn(tokenizer)
    if not {*stated} & {*after_turn}:
        special = {id for id, token in tokenizer.added_tokens_decoder.items() if token.special}
        first = next((id for id in after_turn if not str(tokenizer.decode([id])).isspace()), None)
        if first is not None and first in special - {tokenizer.unk_token_id}:
            stated.append(first)
    ends = frozenset(id for id in stated if id < num_embeddings)
    if not ends:
        raise Mismatch(
            "the model names no end-of-sequence token",
            remedy="set eos_token_id in generation_config.json",
        )
    return ends


def _named_ids(eos_token_id: Any, file: str) -> list[int]:
    """Return the ids that `file` gives as `eos_token_id`. Raises: Mismatch when it gives anything else."""
    if eos_token_id is None:
        return []
    ids: list[int] = eos_token_id if isinstance(eos_token_id, list) else [eos_token_id]
    if not ids or any(type(id) is not int or id < 0 for id in ids):
        raise Mismatch(
            f"eos_token_id in {file} is {eos_token_id!r}",
            remedy="name a token's id, or a list of them",
        )
    return ids


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return `ORDINARY.ADDED`: digests of the ordinary and of the added tokens, with their ids.

    Equal fingerprints mean interchangeable token ids; for equal first parts see `semspec.types.shares_ordinary_tokens`.
    """
    added = tokenizer.get_added_vocab()
    ordinary = {token: id for token, id in tokenizer.get_vocab().items() if token not in added}
    return f"{_vocabulary_digest(ordinary)}.{_vocabulary_digest(added)}"


def _vocabulary_digest(vocabulary: Mapping[str, int]) -> str:
    return _short(
        hashlib.sha256(json.dumps(sorted(vocabulary.items()), ensure_ascii=True).encode())
    )


def chat_template_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the digest of the chat template and the special tokens that it may use; empty if there is no template."""
    if tokenizer.chat_template is None:
        return ""
    inputs = json.dumps(
        [tokenizer.chat_template, tokenizer.special_tokens_map], sort_keys=True, default=str
    )
    return _short(hashlib.sha256(inputs.encode()))


def model_fingerprint(folder: str, form: str = "") -> str:
    """Return the digest of configuration and all weights of a checkpoint: `sha256-full:...`.

    The prefix names this definition, so that a fingerprint by another definition is not mistaken for another model. The
    weights of a GGUF file are served in one of several forms, such as float32 or packed, with different states. So
    their fingerprint covers `form`; that of other weights does not.
    """
    digest = hashlib.sha256(Path(folder, "config.json").read_bytes())
    if weights := weights_digest(folder):
        digest.update(f"{weights} {form}\n".encode())
        return f"{FINGERPRINT}:{_short(digest)}"
    paths = sorted(Path(folder).glob("*.safetensors"))
    for path, weights in zip(paths, file_digests(paths), strict=True):
        digest.update(f"{path.name} {weights}\n".encode())
    return f"{FINGERPRINT}:{_short(digest)}"


def _short(digest: "hashlib._Hash") -> str:
    return digest.hexdigest()[:16]
