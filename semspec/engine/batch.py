"""Samples many continuations of one context in a batch, offline, for probe data. Results equal those of single
calls."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache

from semspec.engine.causal_lm import CausalLM
from semspec.engine.logits import draw_first_tokens, draw_tokens, surprisal
from semspec.engine.segmentation import end_after, ends_before
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
        self._kv = lm.new_kv()
        self._logits = lm.forward(self._context, self._kv).logits[-1]

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
        rows: list[list[int]] = [[] for _ in seeds]
        ends: dict[int, SegmentEnd] = {}
        live, kv, logits = list(range(len(seeds))), self._repeated(len(seeds)), self._logits.expand(len(seeds), -1)
        for position in range(len(self._context), len(self._context) + max_tokens):
            own_seeds = [seeds[row] for row in live]
            if is_after_end and position == len(self._context):
                tokens = draw_first_tokens(self._lm.tokenizer, logits, sampling, own_seeds, position)
            else:
                tokens = draw_tokens(logits, sampling, own_seeds, position)
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
                kv.batch_select_indices(torch.tensor(kept))
            ids = torch.tensor([[rows[row][-1]] for row in live], device=self._lm.device)
            logits = self._lm.forward_batch(ids, kv).logits[:, -1]
        return [Sampled(tokens, ends[row]) for row, tokens in enumerate(rows)]

    def read(self, segments: Sequence[Sequence[int]]) -> BatchReading:
        """States and surprisal of each of `segments`, which are alternatives after the context."""
        length = max(map(len, segments))
        ids = torch.tensor([[*segment, *[0] * (length - len(segment))] for segment in segments], device=self._lm.device)
        forward = self._lm.forward_batch(ids, self._repeated(len(segments)), num_rows=length, want_states=True)
        logits = torch.cat([self._logits.expand(len(segments), 1, -1), forward.logits[:, :-1]], 1)
        states, statistics = [], []
        for row, segment in enumerate(segments):
            states.append(forward.states[:, row, : len(segment)].float().mean(1))
            statistics.append(surprisal(logits[row, : len(segment)], ids[row, : len(segment)]))
        return BatchReading(torch.stack(states), torch.stack(statistics))

    def text_of(self, segment: Sequence[int]) -> str:
        return self._lm.tokenizer.text_of(self._context, segment)

    def _repeated(self, num_rows: int) -> DynamicCache:
        kv = DynamicCache()
        for index, pair in enumerate(self._kv.per_layer()):
            kv.update(*(tensor.expand(num_rows, -1, -1, -1) for tensor in pair), index)
        return kv
