"""Small tokenizers of the forms that real checkpoints have, each trained on the same few sentences."""

import json
from collections.abc import Callable

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from semspec.engine.tokenization import ModelTokenizer
from semspec.types import ModelInfo

SENTENCES = (
    "The answer follows from the first equation.\n\nWe add both sides, and then we divide by two.\n\n",
    "So the ball has 12 points, the box has 30.\n\n1. Tom sells 6 pens.\n2. Tom has 19 pens now.\n\n",
    "Let x be the number of pens: x = 25 - 6 = 19. Then 2x + 1 = 39.\n\n  It isn't much, is it?\n\n",
)
SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
QWEN_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def gpt2_form(*special: str) -> PreTrainedTokenizerFast:
    """Byte-level, with GPT-2's pre-tokenizer, as SmolLM2's: a blank line is two tokens before a letter."""
    return _byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), special)


def qwen_form(*special: str) -> PreTrainedTokenizerFast:
    """Byte-level, with the pre-tokenizer of Qwen2: a blank line is one token."""
    split = pre_tokenizers.Split(Regex(QWEN_PIECES), "isolated")
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return _byte_level(pre_tokenizers.Sequence([split, whole]), special)


def llama2_form(*special: str) -> PreTrainedTokenizerFast:
    """SentencePiece's form as Llama 2 has it: `▁` is put before every text, and bytes stand for rare characters."""
    return _byte_fallback(special, is_prepended=True)


def metaspace_form(*special: str) -> PreTrainedTokenizerFast:
    """SentencePiece's form as newer checkpoints have it: `▁` is put before the first word of a text alone."""
    return _byte_fallback(special, is_prepended=False)


FORMS: dict[str, Callable[..., PreTrainedTokenizerFast]] = {
    "gpt2": gpt2_form,
    "qwen": qwen_form,
    "llama2": llama2_form,
    "metaspace": metaspace_form,
}


def model_tokenizer(raw: PreTrainedTokenizerFast, name: str = "tiny") -> ModelTokenizer:
    """Return the tokenizer of a model that ends with `</s>`."""
    info = ModelInfo(name, "fingerprint", f"{name}.added", 2, 8, 4096)
    return ModelTokenizer(raw, info, frozenset({raw.convert_tokens_to_ids("</s>")}), len(raw))


def _byte_level(
    pre_tokenizer: pre_tokenizers.PreTokenizer, special: tuple[str, ...]
) -> PreTrainedTokenizerFast:
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizer
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    raw.train_from_iterator(SENTENCES * 4, trainer)
    return _with_special(raw, special)


def _byte_fallback(special: tuple[str, ...], is_prepended: bool) -> PreTrainedTokenizerFast:
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    learner.train_from_iterator(
        SENTENCES * 4, trainers.BpeTrainer(vocab_size=300, show_progress=False)
    )
    vocabulary = {"<unk>": 0, **{f"<0x{byte:02X}>": 1 + byte for byte in range(256)}}
    for piece in sorted(learner.get_vocab()):
        if "\n" not in piece:  # written as a byte
            vocabulary[piece] = len(vocabulary)
    learned = json.loads(learner.to_str())["model"]["merges"]
    merges = [(left, right) for left, right in learned if left + right in vocabulary]
    raw = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    if is_prepended:
        raw.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    else:
        raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    spaces = decoders.Replace("▁", " ")
    raw.decoder = decoders.Sequence(
        [spaces, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _with_special(raw, special)


def _with_special(raw: Tokenizer, special: tuple[str, ...]) -> PreTrainedTokenizerFast:
    raw.add_special_tokens([AddedToken(token, normalized=False) for token in (*SPECIAL, *special)])
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="</s>", bos_token="<s>")
