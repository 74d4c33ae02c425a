"""A natural-language-inference (NLI) model, which decides whether one text entails another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from transformers import (
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from semspec.device import device_of
from semspec.engine.checkpoint import load_tokenizer, loading
from semspec.engine.weights import load_weights
from semspec.errors import Mismatch

WINDOW_LIMIT = 512
"""Default maximum length of a pair, in tokens: the length that NLI models are trained on."""
LONGEST_TOKEN = 64
"""Maximum characters of a token, assumed to avoid tokenizing text that is dropped afterwards."""

TokenIds = tuple[int, ...]
TextPair = tuple[TokenIds, TokenIds]
"""Premise and hypothesis, without special tokens."""


class EntailmentConfig(BaseModel):
    """Equivalence by bidirectional entailment: the model and how it runs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["entailment"] = "entailment"
    model: str = Field(
        min_length=1, description="NLI model with safetensors weights: folder or hub id"
    )
    revision: str | None = None
    max_tokens: int | None = Field(
        None,
        ge=16,
        description="of a pair; unset: what the model and its tokenizer allow, at most 512",
    )
    context_tokens: int | None = Field(
        None,
        ge=0,
        description="of the context, before each text of a pair; unset: an eighth of the window",
    )
    batch_size: int = Field(32, ge=1, description="pairs a forward")
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="auto: float32 on a CPU, else bfloat16"
    )
    entailment_label: int | str | None = Field(
        None, description="if the model's labels do not say which one it is"
    )
    with_context: bool = Field(
        True, description="read each segment after the question and the reasoning so far"
    )


@dataclass(frozen=True, slots=True)
class PairFormat:
    """The special tokens, as (token, token type), that a tokenizer adds before, between and after two texts."""

    before: tuple[tuple[int, int], ...]
    between: tuple[tuple[int, int], ...]
    after: tuple[tuple[int, int], ...]
    types: tuple[int, int]

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> "PairFormat":
        """Return the format of a tokenizer's pairs. Raises: Mismatch when it does not report their positions."""
        if not tokenizer.is_fast:
            raise Mismatch(
                "the NLI model has a slow tokenizer",
                remedy="convert it to a tokenizer.json",
            )
        encoding = tokenizer("1", "1", return_token_type_ids=True)
        tokens = list(zip(encoding["input_ids"], encoding["token_type_ids"], strict=True))
        sides = encoding.sequence_ids(0)
        first, second = sides.index(0), sides.index(1)
        first_end, second_end = (len(sides) - sides[::-1].index(side) for side in (0, 1))
        types = (tokens[first][1], tokens[second][1])
        return cls(
            tuple(tokens[:first]),
            tuple(tokens[first_end:second]),
            tuple(tokens[second_end:]),
            types,
        )

    def join(self, pair: TextPair) -> tuple[list[int], list[int]]:
        """Return token ids and token types of a pair."""
        premise, hypothesis = (
            [(token, kind) for token in side] for side, kind in zip(pair, self.types, strict=True)
        )
        tokens = [*self.before, *premise, *self.between, *hypothesis, *self.after]
        return [token for token, _ in tokens], [kind for _, kind in tokens]


class NliModel:
    """An NLI model with its tokenizer. Not thread-safe."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: EntailmentConfig
    ) -> None:
        self._model, self._tokenizer = model.eval().requires_grad_(False), tokenizer
        self._batch_size = config.batch_size
        self._format = pair = PairFormat.of(tokenizer)
        window = _window(model, tokenizer, config.max_tokens)
        self._context_tokens = (
            window // 8 if config.context_tokens is None else config.context_tokens
        )
        self.side_tokens = (window - len(pair.before + pair.between + pair.after)) // 2
        """Maximum tokens of a text and the context before it: half of the window without special tokens."""
        self._takes_types = int(getattr(model.config, "type_vocab_size", None) or 0) > 0
        labels = {int(index): str(name) for index, name in model.config.id2label.items()}
        self._entailment = find_label(labels, config.entailment_label)

    @classmethod
    def load(cls, config: EntailmentConfig) -> "NliModel":
        """Load a checkpoint: safetensors only, no remote code. Raises: Mismatch with the remedy."""
        name = config.model
        device = device_of(config.device, f"the NLI model {name!r}")
        dtype = config.dtype
        if dtype == "auto":
            dtype = "float32" if device == "cpu" else "bfloat16"
        with loading(name, config.revision) as folder:
            model = load_weights(
                AutoModelForSequenceClassification, name, folder, getattr(torch, dtype)
            ).to(device)
            tokenizer = load_tokenizer(folder)
        return cls(model, tokenizer, config)

    def encode(self, context: str, texts: Sequence[str]) -> list[TokenIds | None]:
        """Return one side of a pair for each text: the last `context_tokens` tokens of `context`, then the text.

        No text is truncated; the side is None for a text that is too long. The number of context tokens does not depend
        on the texts, so that the verdict about a pair does not depend on other texts. Without a context, a text may
        fill its side.
        """
        head = context.rstrip(" ")
        gap = context[len(head) :]  # many tokenizers merge a word with the space before it
        num_kept = self._context_tokens
        tail = self._ids(head[-num_kept * LONGEST_TOKEN :])[-num_kept:] if num_kept else []
        limit = self.longest_text(bool(context))
        encoded = [self._ids(gap + text) for text in texts]
        return [(*tail, *ids) if len(ids) <= limit else None for ids in encoded]

    def longest_text(self, with_context: bool) -> int:
        """Return the maximum length of a text, in tokens."""
        return self.side_tokens - (self._context_tokens if with_context else 0)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    def judge(self, pairs: Sequence[TextPair]) -> list[bool]:
        """Return whether entailment is the most probable label of each pair. Pairs of similar length share batches."""
        order = sorted(range(len(pairs)), key=lambda index: sum(map(len, pairs[index])))
        entails = [False] * len(pairs)
        for start in range(0, len(order), self._batch_size):
            part = order[start : start + self._batch_size]
            for index, label in zip(
                part, self._forward([pairs[index] for index in part]), strict=True
            ):
                entails[index] = label == self._entailment
        return entails

    @torch.inference_mode()
    def _forward(self, pairs: Sequence[TextPair]) -> list[int]:
        joined = [self._format.join(pair) for pair in pairs]
        inputs = {"input_ids": [ids for ids, _ in joined]}
        if self._takes_types:
            inputs["token_type_ids"] = [types for _, types in joined]
        padded = self._tokenizer.pad(inputs, return_tensors="pt").to(self._model.device)
        labels: list[int] = self._model(**padded).logits.argmax(-1).tolist()
        return labels


def find_label(labels: Mapping[int, str], wanted: int | str | None) -> int:
    """Return the index of the label `wanted`; if that is None, of the only label whose name begins with "entail".

    Raises: Mismatch when there is no such label.
    """
    if wanted is None:
        found = [index for index, name in labels.items() if name.lower().startswith("entail")]
        if len(found) == 1:
            return found[0]
        raise Mismatch(
            f"there is no entailment label among {dict(labels)}",
            remedy="set entailment_label, or choose an NLI model",
        )
    for index, name in labels.items():
        if wanted == index or str(wanted).lower() == name.lower():
            return index
    raise Mismatch(
        f"there is no label {wanted!r} among {dict(labels)}", remedy="correct entailment_label"
    )


def _window(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_tokens: int | None
) -> int:
    limit = min(int(model.config.max_position_embeddings), int(tokenizer.model_max_length))
    if max_tokens is not None and max_tokens > limit:
        raise Mismatch(
            f"max_tokens is {max_tokens}, but the NLI model allows {limit}",
            remedy="lower max_tokens",
        )
    return max_tokens or min(limit, WINDOW_LIMIT)
