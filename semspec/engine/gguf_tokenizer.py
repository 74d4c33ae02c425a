"""The tokenizer of a GGUF file, in the form of tokenizer.json.

A GGUF file has the tokens, their types, the merges, and the name of a pre-tokenizer, but not its rules. transformers
knows the rules of some names and uses GPT-2's for others, which splits numbers and text in another way than in the
model's training. Here, each name has the rules of its models' published tokenizer.json; other names are refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from semspec.errors import Mismatch

CONTROL, USER_DEFINED, UNUSED = 3, 4, 5
"""Types of tokens: special, added but not special, and padding of the vocabulary."""

_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_SPLIT, LLAMA3_SPLIT = _SPLIT % "", _SPLIT % "{1,3}"

END_TOKENS = frozenset(
    {"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"}
)
"""Special tokens that end a turn or a text, even if the file does not name them as such."""

OTHER_FILE = "give a newer GGUF file of the model, or its safetensors checkpoint"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """The rules that split a text before tokens are merged."""

    split: str = ""
    """Regular expression of the parts; empty: that of GPT-2."""
    is_by_digit: bool = False
    """Whether each digit is a separate part."""
    is_normalized: bool = False
    """Whether the text is normalised to NFC."""
    keeps_whole_tokens: bool = False
    """Whether a part that is a token stays whole, instead of being merged from its bytes."""
    adds_bos: bool = False
    """Whether a text begins with the beginning-of-sequence token, if the file does not state it."""

    def build(self) -> pre_tokenizers.PreTokenizer:
        """Return a byte-level pre-tokenizer with these rules."""
        if self.split:
            split = pre_tokenizers.Split(Regex(self.split), "isolated")
            return pre_tokenizers.Sequence(
                [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
            )
        gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
        if self.is_by_digit:
            return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
        return gpt2


_LLAMA3 = PreTokenizer(LLAMA3_SPLIT, keeps_whole_tokens=True, adds_bos=True)
PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "qwen2": PreTokenizer(QWEN2_SPLIT, is_normalized=True),
    "deepseek-r1-qwen": PreTokenizer(QWEN2_SPLIT),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "smollm": PreTokenizer(is_by_digit=True),
    "gpt-2": PreTokenizer(),
}
"""Rules by the value of `tokenizer.ggml.pre`."""


@dataclass(frozen=True, slots=True)
class GgufTokenizer:
    """The tokenizer in the metadata of a GGUF file."""

    name: str
    """Name of the file, for messages."""
    metadata: Mapping[str, Any]

    def build(self) -> Tokenizer:
        """Build the tokenizer. Raises: Mismatch when the file has none, or one of an unsupported kind."""
        tokens, rules = self.tokens, self._rules
        merges = self._list("merges")
        pairs = [
            (left, right) for left, _, right in (str(merge).partition(" ") for merge in merges)
        ]
        types = self._types
        vocabulary = {token: id for id, token in enumerate(tokens) if types[id] != UNUSED}
        try:
            bpe = models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=rules.keeps_whole_tokens)
        except Exception as error:  # the Rust tokenizers raise plain exceptions
            raise self._refusal(
                f"has merges that do not belong to its tokens ({error})", "fetch it again"
            ) from error
        tokenizer = Tokenizer(bpe)
        tokenizer.normalizer = normalizers.NFC() if rules.is_normalized else None
        tokenizer.pre_tokenizer = rules.build()
        tokenizer.decoder = decoders.ByteLevel()
        added = [
            AddedToken(token, normalized=False, special=types[id] == CONTROL)
            for id, token in enumerate(tokens)
            if types[id] in (CONTROL, USER_DEFINED)
        ]
        tokenizer.add_tokens(added)
        offsets = processors.ByteLevel(trim_offsets=False)
        bos = self.token("bos")
        if self.adds_bos and bos is not None:
            template = processors.TemplateProcessing(
                f"{bos} $A", special_tokens=[(bos, self._id("bos"))]
            )
            tokenizer.post_processor = processors.Sequence([offsets, template])
        else:
            tokenizer.post_processor = offsets
        return tokenizer

    @property
    def tokens(self) -> list[str]:
        """The tokens by id. Raises: Mismatch when the file has none."""
        return self._list("tokens")

    @property
    def template(self) -> str | None:
        template = self.metadata.get("tokenizer.chat_template")
        return template if isinstance(template, str) else None

    @property
    def adds_bos(self) -> bool:
        return bool(self.metadata.get("tokenizer.ggml.add_bos_token", self._rules.adds_bos))

    def config(self) -> dict[str, Any]:
        """Return tokenizer_config.json: special tokens, without the chat template.

        A beginning-of-sequence token that neither begins a text nor is used in the chat template is left out, as in the
        published configuration of such models.
        """
        uses_bos = self.adds_bos or "bos_token" in (self.template or "")
        kinds = {"eos": "eos", "unk": "unknown", "pad": "padding"} | (
            {"bos": "bos"} if uses_bos else {}
        )
        named = {f"{kind}_token": self.token(key) for kind, key in kinds.items()}
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            **{kind: token for kind, token in named.items() if token is not None},
        }

    def end_ids(self) -> list[int]:
        """Return the ids that end a turn or a text: those that the file names, in their order, then `END_TOKENS`."""
        named = [id for kind in ("eos", "eot", "eom") if (id := self._id(kind)) is not None]
        types = self._types
        known = [
            id
            for id, token in enumerate(self.tokens)
            if types[id] == CONTROL and token in END_TOKENS
        ]
        return list(dict.fromkeys([*named, *known]))

    def token(self, kind: str) -> str | None:
        """Return the special token of a kind such as `eos`; None if the file names none."""
        id = self._id(kind)
        return None if id is None else self.tokens[id]

    def _id(self, kind: str) -> int | None:
        id = self.metadata.get(f"tokenizer.ggml.{kind}_token_id")
        if id is not None and not (type(id) is int and 0 <= id < len(self.tokens)):
            raise self._refusal(
                f"names the id {id!r} as its {kind} token, but has no such token", "fetch it again"
            )
        return id

    @property
    def _types(self) -> list[int]:
        tokens, types = self.tokens, self._list("token_type")
        if len(types) != len(tokens):
            raise self._refusal(
                f"has {len(tokens)} tokens and {len(types)} types of them", "fetch it again"
            )
        return types

    @property
    def _rules(self) -> PreTokenizer:
        model = self.metadata.get("tokenizer.ggml.model")
        if model is None:
            raise self._refusal("has no tokenizer", "give a GGUF file of a whole language model")
        if model != "gpt2":
            raise self._refusal(
                f"has a tokenizer of the kind {model!r}, which is not read", OTHER_FILE
            )
        name = self.metadata.get("tokenizer.ggml.pre")
        if name is None:
            raise self._refusal("does not name its pre-tokenizer", OTHER_FILE)
        if name not in PRE_TOKENIZERS:
            known = ", ".join(PRE_TOKENIZERS)
            raise self._refusal(
                f"has the pre-tokenizer {name!r}, which is not among {known}", OTHER_FILE
            )
        return PRE_TOKENIZERS[name]

    def _list(self, key: str) -> list[Any]:
        value = self.metadata.get(f"tokenizer.ggml.{key}")
        if not isinstance(value, list) or not value:
            raise self._refusal(
                f"has no tokenizer.ggml.{key}", "fetch it again, or give another file of the model"
            )
        return value

    def _refusal(self, reason: str, remedy: str) -> Mismatch:
        return Mismatch(f"{self.name} {reason}", remedy=remedy)
