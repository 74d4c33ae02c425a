"""Samples many continuations of one context in a batch, offline, for probe data. Results equal those of single
calls."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import DynamicCache

from semspec.engine.causal_lm import CausalLM
from semspec.engine.logits import draw_each, draw_token, surprisal
from semspec.engine.segmentation import end_after, ends_before
from semspec.engine.shared_prefix import MAX_SCORES, Prefix, attending_to_prefix
from semspec.types import SamplingParams, Segmentation, SegmentEnd


@dataclass(frozen=True, slots=True)
class Sampled:
    """One continuation."""

    token_ids: list[int]
    """End-of-sequence included."""
    end: SegmentEnd


@dataclass(frozen=True, slots=True)
class BatchReading:
    """Result of a forward pass over alternative segments of one context."""

    states: Tensor
    """Pooled, fp32 `[num_segments, num_layers + 1, hidden_size]` (`states-v1`)."""
    surprisal: Tensor
    """fp32 `[num_segments, num_surprisal_features]`."""


class ContextBatch:
    """A context that is fed once and continued many times."""

    def __init__(self, lm: CausalLM, context: Sequence[int]) -> None:
        self._lm, self._context = lm, list(context)
        kv = lm.new_kv()
        self._logits = lm.forward(self._context, kv).logits[-1]
        self._prefix: Prefix = [(keys.contiguous(), values.contiguous()) for keys, values in kv.per_layer()]

    def sample(
        self,
        sampling: SamplingParams,
        seeds: Sequence[int],
        segmentation: Segmentation,
        max_tokens: int,
        is_after_end: bool = False,
    ) -> list[Sampled]:
        """One next segment per seed, in the order of `seeds`; the same tokens that the engine generates with that
        seed. `is_after_end`: the context is `ended_by_look_ahead`."""
        with self._rest(len(seeds), 1, max_tokens) as rest:
            return self._sample(rest, sampling, seeds, segmentation, max_tokens, is_after_end)

    def _sample(
        self,
        rest: "_Rest",
        sampling: SamplingParams,
        seeds: Sequence[int],
        segmentation: Segmentation,
        max_tokens: int,
        is_after_end: bool,
    ) -> list[Sampled]:
        rows: list[list[int]] = [[] for _ in seeds]
        ends: dict[int, SegmentEnd] = {}
        samplings = [replace(sampling, seed=seed) for seed in seeds]
        live, logits = list(range(len(seeds))), self._logits.expand(len(seeds), -1)
        for position in range(len(self._context), len(self._context) + max_tokens):
            if is_after_end and position == len(self._context):
                tokens = [draw_token(self._logits, own, position, self._lm.tokenizer) for own in samplings]
            else:
                tokens = draw_each(logits, [samplings[row] for row in live], [position] * len(live))
            for row, token in zip(live, tokens, strict=True):
                if ends_before(self._lm.tokenizer, segmentation, self._context, rows[row], token):
                    ends[row] = SegmentEnd.BOUNDARY
                    continue
                rows[row].append(token)
                if end := end_after(self._lm.tokenizer, segmentation, self._context, rows[row], max_tokens):
                    ends[row] = end
            kept = [i for i, row in enumerate(live) if row not in ends]
            if not kept:
                break
            if len(kept) < len(live):
                live = [live[i] for i in kept]
                rest.kv.batch_select_indices(torch.tensor(kept))
            ids = torch.tensor([[rows[row][-1]] for row in live], device=self._lm.device)
            logits = self._lm.forward_batch(ids, rest.kv, prefix=rest.prefix).logits[:, -1]
        return [Sampled(tokens, ends[row]) for row, tokens in enumerate(rows)]

    def read(self, segments: Sequence[Sequence[int]]) -> BatchReading:
        """States and surprisal of each of `segments`, which are alternatives after the context."""
        length = max(map(len, segments))
        ids = torch.tensor([[*segment, *[0] * (length - len(segment))] for segment in segments], device=self._lm.device)
        with self._rest(len(segments), length, length) as rest:
            forward = self._lm.forward_batch(ids, rest.kv, length, want_states=True, prefix=rest.prefix)
        logits = torch.cat([self._logits.expand(len(segments), 1, -1), forward.logits[:, :-1]], 1)
        states, statistics = [], []
        for row, segment in enumerate(segments):
            states.append(forward.states[:, row, : len(segment)].float().mean(1))
            statistics.append(surprisal(logits[row, : len(segment)], ids[row, : len(segment)]))
        return BatchReading(torch.stack(states), torch.stack(statistics))

    def text_of(self, segment: Sequence[int]) -> str:
        return self._lm.tokenizer.text_of(self._context, segment)

    @contextmanager
    def _rest(self, num_rows: int, length: int, max_tokens: int) -> Iterator["_Rest"]:
        """The cache for rows of at most `max_tokens`, fed `length` at a time."""
        num_scores = num_rows * self._num_heads * length * (len(self._context) + max_tokens)
        if self._lm.can_share_prefix and num_scores <= MAX_SCORES:
            with attending_to_prefix(self._lm.model):
                yield _Rest(DynamicCache(), self._prefix)
            return
        kv = DynamicCache()
        for index, pair in enumerate(self._prefix):
            kv.update(*(tensor.expand(num_rows, -1, -1, -1) for tensor in pair), index)
        yield _Rest(kv, None)

    @property
    def _num_heads(self) -> int:
        return int(self._lm.model.config.get_text_config().num_attention_heads)


@dataclass(frozen=True, slots=True)
class _Rest:
    """Keys and values of the rows: after the shared `prefix`, or with a copy of the context each."""

    kv: DynamicCache
    prefix: Prefix | None
