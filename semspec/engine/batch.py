"""Batches of many continuations of one context, offline, for training data.

The results equal those of single calls. All rows share one copy of the context's keys and values.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import AttentionInterface, DynamicCache

from semspec.engine.causal_lm import CausalLM, Prefix
from semspec.engine.decoder import unsupported_reason
from semspec.engine.logits import draw_each, draw_token, segment_surprisal, token_statistics
from semspec.engine.segmentation import end_after, ends_before
from semspec.engine.tokenization import MAX_CHARACTER_BYTES
from semspec.types import SamplingParams, Segmentation, SegmentEnd

SHARED_PREFIX = "semspec_shared_prefix"
"""Name under which `attention` is registered with transformers."""
MAX_SCORES = 2**26
"""Maximum number of attention scores in memory; longer segments are read in parts."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One sampled continuation."""

    token_ids: list[int]
    """Its tokens, end-of-sequence included."""
    end: SegmentEnd


@dataclass(frozen=True, slots=True)
class BatchReading:
    """States and surprisal of alternative segments after one context."""

    states: Tensor
    """Pooled, fp32 `[num_segments, num_layers + 1, hidden_size]` (`states-v1`)."""
    surprisal: Tensor
    """fp32 `[num_segments, num_surprisal_features]`."""
    token_statistics: list[Tensor]
    """See `semspec.engine.logits.token_statistics`; one a segment, `[num_tokens, 4]`."""


class ContextBatch:
    """A context that is fed once and continued many times."""

    def __init__(self, lm: CausalLM, context: Sequence[int]) -> None:
        self._lm, self._context, self._kv = lm, list[int](), lm.new_kv()
        self.extend(context)

    def extend(self, context: Sequence[int]) -> bool:
        """Extend the context by feeding the rest of `context`. Return False if it does not begin with this one."""
        if self._context != list(context[: len(self._context)]):
            return False
        if rest := context[len(self._context) :]:
            self._logits = self._lm.forward(rest, self._kv).logits[-1]
            self._context += rest
            dtype = self._lm.model.dtype  # for packed weights, the decoder has keys in fp64
            self._prefix: Prefix = [
                (keys.to(dtype), values.to(dtype)) for keys, values in self._kv.per_layer()
            ]
        return True

    def sample(
        self,
        sampling: SamplingParams,
        seeds: Sequence[int],
        segmentation: Segmentation,
        max_tokens: int,
        is_after_end: bool = False,
    ) -> list[Sampled]:
        """Sample one next segment per seed, in the order of `seeds`: the tokens that the engine generates with it.

        `is_after_end`: the context is `ended_by_look_ahead`.
        """
        rows: list[list[int]] = [[] for _ in seeds]
        ends: dict[int, SegmentEnd] = {}
        samplings = [replace(sampling, seed=seed) for seed in seeds]
        live, logits = list(range(len(seeds))), self._logits.expand(len(seeds), -1)
        with self._new_kv(len(seeds)) as (kv, prefix):
            # A segment continues to the end of its last character.
            longest = max_tokens + MAX_CHARACTER_BYTES - 1
            for position in range(len(self._context), len(self._context) + longest):
                if is_after_end and position == len(self._context):
                    tokens = [
                        draw_token(self._logits, seeded, position, self._lm.tokenizer)
                        for seeded in samplings
                    ]
                else:
                    tokens = draw_each(
                        logits, [samplings[row] for row in live], [position] * len(live)
                    )
                for row, token in zip(live, tokens, strict=True):
                    if ends_before(
                        self._lm.tokenizer, segmentation, self._context, rows[row], token
                    ):
                        ends[row] = SegmentEnd.BOUNDARY
                        continue
                    rows[row].append(token)
                    if end := end_after(
                        self._lm.tokenizer, segmentation, self._context, rows[row], max_tokens
                    ):
                        ends[row] = end
                kept = [i for i, row in enumerate(live) if row not in ends]
                if not kept:
                    break
                if len(kept) < len(live):
                    live = [live[i] for i in kept]
                    kv.batch_select_indices(torch.tensor(kept))
                ids = torch.tensor([[rows[row][-1]] for row in live], device=self._lm.device)
                logits = self._lm.forward_batch(ids, kv, prefix=prefix).logits[:, -1]
        return [Sampled(tokens, ends[row]) for row, tokens in enumerate(rows)]

    def read(self, segments: Sequence[Sequence[int]]) -> BatchReading:
        """Return states and surprisal of each of `segments`, which are alternatives after the context."""
        ids, device = self._padded(segments), self._lm.device
        length = ids.shape[1]
        num_heads = int(self._lm.model.config.get_text_config().num_attention_heads)
        at_once = max(1, MAX_SCORES // (len(segments) * num_heads * (len(self._context) + length)))
        totals = [torch.zeros((), device=device)] * len(segments)
        statistics = [list[Tensor]() for _ in segments]
        before = self._logits.expand(len(segments), 1, -1)
        with self._new_kv(len(segments)) as (kv, prefix):
            for start in range(0, length, at_once):
                part = ids[:, start : start + at_once]
                forward = self._lm.forward_batch(
                    part, kv, part.shape[1], want_states=True, prefix=prefix
                )
                logits = torch.cat([before, forward.logits[:, :-1]], 1)
                before = forward.logits[:, -1:]
                for row, segment in enumerate(segments):
                    unpadded = slice(0, max(0, len(segment) - start))
                    totals[row] = totals[row] + forward.states[:, row, unpadded].float().sum(1)
                    statistics[row].append(
                        token_statistics(logits[row, unpadded], part[row, unpadded])
                    )
        states = torch.stack(
            [total / len(segment) for total, segment in zip(totals, segments, strict=True)]
        )
        by_segment = [torch.cat(parts) for parts in statistics]
        surprisal = torch.stack([segment_surprisal(values) for values in by_segment])
        return BatchReading(states, surprisal, by_segment)

    def last_logits(self, segments: Sequence[Sequence[int]]) -> Tensor:
        """Return the logits after each of `segments`, alternatives after the context, `[num_segments, vocab_size]`."""
        length, device = max(map(len, segments)), self._lm.device
        num_heads = int(self._lm.model.config.get_text_config().num_attention_heads)
        at_once = max(1, MAX_SCORES // (num_heads * length * (len(self._context) + length)))
        last: list[Tensor] = []
        for start in range(0, len(segments), at_once):
            part = segments[start : start + at_once]
            ids = self._padded(part)
            ends = torch.tensor([len(segment) - 1 for segment in part], device=device)
            kept, rows = ends.unique(return_inverse=True)
            with self._new_kv(len(part)) as (kv, prefix):
                logits = self._lm.forward_batch(ids, kv, kept, prefix=prefix).logits
            last.append(logits[torch.arange(len(part), device=device), rows])
        return torch.cat(last)

    def text_of(self, segment: Sequence[int]) -> str:
        """Return the text that `segment` adds after the context."""
        return self._lm.tokenizer.text_of(self._context, segment)

    def _padded(self, segments: Sequence[Sequence[int]]) -> Tensor:
        """Return `segments` as `[num_segments, length]`, padded on the right."""
        length = max(map(len, segments))
        rows = [[*segment, *[0] * (length - len(segment))] for segment in segments]
        return torch.tensor(rows, device=self._lm.device)

    @contextmanager
    def _new_kv(self, num_rows: int) -> Iterator[tuple[DynamicCache, Prefix | None]]:
        """Yield an empty cache and the prefix that its rows share.

        If the model cannot share the prefix, yield a cache with copies of it, and None.
        """
        if unsupported_reason(self._lm.model):
            kv = DynamicCache()
            for index, pair in enumerate(self._prefix):
                kv.update(*(tensor.expand(num_rows, -1, -1, -1) for tensor in pair), index)
            yield kv, None
            return
        model = self._lm.model
        previous = model.config._attn_implementation
        model.set_attn_implementation(SHARED_PREFIX)
        try:
            yield DynamicCache(), self._prefix
        finally:
            model.set_attn_implementation(previous)


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float,
    prefix: Prefix,
    **_: object,
) -> tuple[Tensor, None]:
    """Compute the attention of each row to `prefix` and, causally, to the row's own tokens.

    `query`: `[rows, heads, length, head_size]`; `key`, `value`: after the prefix, `[rows, kv_heads, suffix_length,
    head_size]`. Returns `[rows, length, heads, head_size]`. `mask` is unused: rows are padded on the right only.
    """
    prefix_key, prefix_value = (tensor[0] for tensor in prefix[int(module.layer_idx)])  # type: ignore[arg-type]
    rows, num_heads, length, size = query.shape
    kv_heads, suffix_length = key.shape[1:3]
    # [rows, kv_heads, group * length, size]
    grouped = (query * scaling).reshape(rows, kv_heads, -1, size)
    # One matrix product a head for all rows.
    by_head = grouped.transpose(0, 1).reshape(kv_heads, -1, size)
    to_prefix = (
        (by_head @ prefix_key.transpose(1, 2))
        .view(kv_heads, rows, -1, prefix_key.shape[1])
        .transpose(0, 1)
    )
    to_suffix = grouped @ key.transpose(2, 3)
    if length > 1:
        future = torch.ones(length, suffix_length, dtype=torch.bool, device=key.device).triu(
            suffix_length - length + 1
        )
        to_suffix = (
            to_suffix.view(rows, kv_heads, -1, length, suffix_length)
            .masked_fill(future, float("-inf"))
            .view(to_suffix.shape)
        )
    scores = torch.cat([to_prefix, to_suffix], -1)
    weights = torch.softmax(scores, -1, dtype=torch.float32).to(query.dtype)
    prefix_weights, suffix_weights = weights.split([prefix_key.shape[1], suffix_length], -1)
    mixed = (
        prefix_weights.transpose(0, 1).reshape(kv_heads, -1, prefix_key.shape[1]) @ prefix_value
    ).view(kv_heads, rows, -1, size).transpose(0, 1) + suffix_weights @ value
    return mixed.reshape(rows, num_heads, length, size).transpose(1, 2).contiguous(), None


AttentionInterface.register(SHARED_PREFIX, attention)
