"""Runner for transformers' `generate`: the target alone, assisted by the draft, or with prompt lookup."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from semspec.engine.architecture import context_window
from semspec.engine.checkpoint import eos_ids, load_tokenizer, tokenizer_fingerprint
from semspec.engine.weights import load_weights
from semspec.errors import Mismatch
from semspec_bench.runners.protocol import Ask, NotApplicable, Outcome, RunnerError

NUM_LOOKUP_TOKENS = 10
"""The example value of transformers' documentation; there is no default."""


@dataclass(frozen=True, slots=True)
class _Model:
    """A loaded checkpoint for `generate`."""

    network: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    fingerprint: str
    """Fingerprint of the tokenizer."""
    eos_ids: tuple[int, ...]

    @classmethod
    def load(cls, folder: Path) -> "_Model":
        """fp32 on the CPU, bf16 on a GPU. Raises: RunnerError."""
        device, dtype = (
            ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
        )
        try:
            tokenizer = load_tokenizer(str(folder))
            network = load_weights(AutoModelForCausalLM, str(folder), str(folder), dtype)
            ends = sorted(
                eos_ids(str(folder), tokenizer, network.get_input_embeddings().num_embeddings)
            )
        except (OSError, ValueError, Mismatch) as error:
            raise RunnerError(
                f"transformers cannot load {folder}: {_one_line(error)}",
                remedy="give another --pair",
            ) from error
        pad_id = ends[0] if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        # Replaces the checkpoint's own, whose sampling settings would apply where a request sets none.
        network.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=pad_id)
        network = network.to(device).eval().requires_grad_(False)
        return cls(network, tokenizer, tokenizer_fingerprint(tokenizer), tuple(ends))

    @property
    def vocab_size(self) -> int:
        return int(self.network.config.get_text_config().vocab_size)

    @property
    def num_window_tokens(self) -> int:
        return context_window(self.network.config)

    def pad_to(self, vocab_size: int) -> None:
        """Resize the vocabulary to `vocab_size`; rows past the tokenizer's vocabulary are padding of arbitrary size."""
        known = min(self.vocab_size, vocab_size)
        self.network.resize_token_embeddings(vocab_size, mean_resizing=False)
        for rows in (self.network.get_input_embeddings(), self.network.get_output_embeddings()):
            rows.weight.data[known:] = 0
        self.network.requires_grad_(False)

    def encode(self, turns: list[dict[str, str]]) -> list[int]:
        """Render and tokenize a conversation. Raises: RunnerError."""
        try:
            text = self.tokenizer.apply_chat_template(
                turns, tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # templates may raise anything
            raise RunnerError(
                f"the target's chat template refuses the question: {_one_line(error)}"
            ) from error
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def decode(self, ids: list[int]) -> str:
        return str(
            self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )


class TransformersRunner:
    """See `semspec_bench.runners.protocol.Runner`. Models are loaded on first use."""

    def __init__(self, pair: Path) -> None:
        self._pair = pair
        self._target: _Model | None = None
        self._drafts: dict[bool, _Model] = {}
        """Drafts by whether they sample: sampling permanently prunes the head of a draft with another tokenizer."""

    async def ask(self, ask: Ask) -> Outcome:
        is_cancelled = Event()
        try:
            return await asyncio.to_thread(self._ask, ask, is_cancelled)
        finally:
            is_cancelled.set()  # a thread cannot be cancelled: it checks the event after every step

    def processes(self) -> Mapping[str, int]:
        return {"transformers": os.getpid()}

    def _ask(self, ask: Ask, is_cancelled: Event) -> Outcome:
        self._target = target = self._target or _Model.load(self._pair / "target")
        options = self._method_options(ask, target)
        start = perf_counter()
        prompt = target.encode(ask.turns)
        if len(prompt) + ask.max_tokens > target.num_window_tokens:
            raise RunnerError(
                f"{len(prompt)} tokens of prompt and {ask.max_tokens} of answer exceed the target's window of "
                f"{target.num_window_tokens}; give a lower --max-tokens"
            )
        torch.manual_seed(ask.seed)
        ids = _generate(
            target, prompt, ask, options | {"stopping_criteria": [_stop_on(is_cancelled)]}
        )
        return Outcome(
            text=target.decode(ids),
            finish_reason="stop" if ids[-1] in target.eos_ids else "length",
            latency_s=perf_counter() - start,
            num_prompt_tokens=len(prompt),
            num_tokens=len(ids),
        )

    def _method_options(self, ask: Ask, target: _Model) -> dict[str, Any]:
        """Return the method's options for `generate`."""
        tokens = ask.configuration.knobs.get("tokens")
        match ask.configuration.method:
            case "lookup":
                return {"prompt_lookup_num_tokens": NUM_LOOKUP_TOKENS if tokens is None else tokens}
            case "assisted":
                return _assistance(target, self._draft(ask.temperature > 0), tokens)
            case _:
                return {}

    def _draft(self, is_sampled: bool) -> _Model:
        if is_sampled not in self._drafts:
            self._drafts[is_sampled] = _Model.load(self._pair / "draft")
        return self._drafts[is_sampled]


@asynccontextmanager
async def open_transformers(pair: Path) -> AsyncIterator[TransformersRunner]:
    """Run the pair in this process within the block."""
    log = logging.getLogger("transformers.generation.utils")
    log.addFilter(_is_avoidable)
    try:
        yield TransformersRunner(pair)
    finally:
        log.removeFilter(_is_avoidable)


def _is_avoidable(record: logging.LogRecord) -> bool:
    """Return whether callers can avoid a warning, unlike that about `generate`'s own call of the assistant."""
    return not record.getMessage().startswith("Passing `generation_config` together with")


def _assistance(target: _Model, draft: _Model, tokens: int | None) -> dict[str, Any]:
    """Return the options for the draft as assistant, which proposes up to `tokens` at a time, or transformers' default.

    Raises: NotApplicable, when the vocabularies differ in a way that transformers does not detect.
    """
    schedule = (
        {}
        if tokens is None
        else {"num_assistant_tokens": tokens, "num_assistant_tokens_schedule": "constant"}
    )
    # Reset for each request: one label's settings must not affect the next.
    known = {
        name: getattr(draft.network.generation_config, name)
        for name in ("eos_token_id", "pad_token_id")
    }
    draft.network.generation_config = GenerationConfig(**known, **schedule)
    if target.fingerprint == draft.fingerprint:
        if target.vocab_size != draft.vocab_size:
            draft.pad_to(target.vocab_size)
        return {"assistant_model": draft.network}
    if target.vocab_size == draft.vocab_size:
        raise NotApplicable(
            f"draft and target have different tokenizers but the same vocabulary size, {target.vocab_size}: "
            "transformers takes such a draft's token ids for the target's"
        )
    return {
        "assistant_model": draft.network,
        "tokenizer": target.tokenizer,
        "assistant_tokenizer": draft.tokenizer,
    }


def _generate(target: _Model, prompt: list[int], ask: Ask, options: dict[str, Any]) -> list[int]:
    """Return the answer's tokens, end-of-sequence included. Raises: RunnerError, NotApplicable."""
    ids = torch.tensor([prompt], device=target.network.device)
    sampling: dict[str, Any] = {"do_sample": False}
    if ask.temperature > 0:
        sampling = {
            "do_sample": True,
            "temperature": ask.temperature,
            "top_p": ask.top_p,
            "top_k": 0,
        }
    method = ask.configuration.method
    try:
        output = target.network.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=ask.max_tokens,
            **sampling,
            **options,
        )
    except Exception as error:  # it may raise anything
        broken = NotApplicable if method == "assisted" else RunnerError
        raise broken(
            f"transformers cannot do {method} with this pair: {_one_line(error)}"
        ) from error
    answer: list[int] = output[0, len(prompt) :].tolist()
    return answer


def _stop_on(event: Event) -> Any:
    """Return a stopping criterion in the form `generate` takes."""

    def criterion(ids: Tensor, scores: object, **kwargs: object) -> Tensor:
        return torch.full((ids.shape[0],), event.is_set(), device=ids.device)

    return criterion


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
