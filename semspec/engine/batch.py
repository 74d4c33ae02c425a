"""Samples many continuations of one context in a batch, offline, for probe data. Results equal those of single
calls. The context's keys and values are kept once and not copied for each row."""

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
"""Name of the attention of rows that share a prefix."""
MAX_SCORES = 2**26
"""Most attention scores that a layer holds at once: longer segments are read in parts."""


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
        self._lm, self._context, self._kv = lm, list[int](), lm.new_kv()
        self.extend(context)

    def extend(self, context: Sequence[int]) -> bool:
        """Go on to a context that begins with this one, by feeding the rest. False: it does not begin with it."""
        if self._context != list(context[: len(self._context)]):
            return False
        if rest := context[len(self._context) :]:
            self._logits = self._lm.forward(rest, self._kv).logits[-1]
            self._context += rest
            dtype = (
                self._lm.model.dtype
            )  # of packed weights, the decoder's keys and values are in fp64
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
        """One next segment per seed, in the order of `seeds`; the same tokens that the engine generates with that
        seed. `is_after_end`: the context is `ended_by_look_ahead`."""
        rows: list[list[int]] = [[] for _ in seeds]
        ends: dict[int, SegmentEnd] = {}
        samplings = [replace(sampling, seed=seed) for seed in seeds]
        live, logits = list(range(len(seeds))), self._logits.expand(len(seeds), -1)
        with self._rest(len(seeds)) as (kv, prefix):
            longest = (
                max_tokens + MAX_CHARACTER_BYTES - 1
            )  # a segment goes on to the end of its last character
            for position in range(len(self._context), len(self._context) + longest):
                if is_after_end and position == len(self._context):
                    tokens = [
                        draw_token(self._logits, own, position, self._lm.tokenizer)
                        for own in samplings
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
        """States and surprisal of each of `segments`, which are alternatives after the context."""
        length, device = max(map(len, segments)), self._lm.device
        ids = torch.tensor(
            [[*segment, *[0] * (length - len(segment))] for segment in segments], device=device
        )
        num_heads = int(self._lm.model.config.get_text_config().num_attention_heads)
        at_once = max(1, MAX_SCORES // (len(segments) * num_heads * (len(self._context) + length)))
        totals, statistics = (
            [torch.zeros((), device=device)] * len(segments),
            [list[Tensor]() for _ in segments],
        )
        before = self._logits.expand(len(segments), 1, -1)
        with self._rest(len(segments)) as (kv, prefix):
            for start in range(0, length, at_once):
                part = ids[:, start : start + at_once]
                forward = self._lm.forward_batch(
                    part, kv, part.shape[1], want_states=True, prefix=prefix
                )
                logits, before = (
                    torch.cat([before, forward.logits[:, :-1]], 1),
                    forward.logits[:, -1:],
                )
                for row, segment in enumerate(segments):
                    own = slice(0, max(0, len(segment) - start))
                    totals[row] = totals[row] + forward.states[:, row, own].float().sum(1)
                    statistics[row].append(token_statistics(logits[row, own], part[row, own]))
        states = torch.stack(
            [total / len(segment) for total, segment in zip(totals, segments, strict=True)]
        )
        return BatchReading(
            states, torch.stack([segment_surprisal(torch.cat(of_row)) for of_row in statistics])
        )

    def last_logits(self, segments: Sequence[Sequence[int]]) -> Tensor:
        """Logits after each of `segments`, which are alternatives after the context, `[num_segments, vocab_size]`."""
        length, device = max(map(len, segments)), self._lm.device
        num_heads = int(self._lm.model.config.get_text_config().num_attention_heads)
        at_once = max(1, MAX_SCORES // (num_heads * length * (len(self._context) + length)))
        last: list[Tensor] = []
        for start in range(0, len(segments), at_once):
            part = segments[start : start + at_once]
            ids = torch.tensor(
                [[*segment, *[0] * (length - len(segment))] for segment in part], device=device
            )
            ends = torch.tensor([len(segment) - 1 for segment in part], device=device)
            kept, rows = ends.unique(return_inverse=True)
            with self._rest(len(part)) as (kv, prefix):
                logits = self._lm.forward_batch(ids, kv, kept, prefix=prefix).logits
            last.append(logits[torch.arange(len(part), device=device), rows])
        return torch.cat(last)

    def text_of(self, segment: Sequence[int]) -> str:
        return self._lm.tokenizer.text_of(self._context, segment)

    @contextmanager
    def _rest(self, num_rows: int) -> Iterator[tuple[DynamicCache, Prefix | None]]:
        """Keys and values of rows after the context, or, where the model cannot share it, with a copy of it."""
        if unsupported_reason(self._lm.model):
            kv = DynamicCache()
            for index, pair in enumerate(self._prefix):
                kv.update(*(tensor.expand(num_rows, -1, -1, -1) for tensor in pair), index)
            yield kv, None
            return
        model = self._lm.model
        usual = model.config._attn_implementation
        model.set_attn_implementation(SHARED_PREFIX)
        try:
            yield DynamicCache(), self._prefix
        finally:
            model.set_attn_implementation(usual)


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
    """Attention of each row to `prefix` and, causally, to its own tokens.

    `query`: `[rows, heads, length, head_size]`; `key`, `value`: a row's own, `[rows, kv_heads, own_length, head_size]`.
    Returns `[rows, length, heads, head_size]`. `mask` is unused: rows are padded on the right only.
    """
    prefix_key, prefix_value = (tensor[0] for tensor in prefix[int(module.layer_idx)])  # type: ignore[arg-type]
    rows, num_heads, length, size = query.shape
    kv_heads, own_length = key.shape[1:3]
    grouped = (query * scaling).reshape(
        rows, kv_heads, -1, size
    )  # [rows, kv_heads, group * length, size]
    by_head = grouped.transpose(0, 1).reshape(
        kv_heads, -1, size
    )  # one matrix product a head for all rows
    shared = (
        (by_head @ prefix_key.transpose(1, 2))
        .view(kv_heads, rows, -1, prefix_key.shape[1])
        .transpose(0, 1)
    )
    own = grouped @ key.transpose(2, 3)
    if length > 1:
        future = torch.ones(length, own_length, dtype=torch.bool, device=own.device).triu(
            own_length - length + 1
        )
        own = (
            own.view(rows, kv_heads, -1, length, own_length)
            .masked_fill(future, float("-inf"))
            .view(own.shape)
        )
    weights = torch.softmax(torch.cat([shared, own], -1), -1, dtype=torch.float32).to(query.dtype)
    to_prefix, to_own = weights.split([prefix_key.shape[1], own_length], -1)
    mixed = (
        to_prefix.transpose(0, 1).reshape(kv_heads, -1, prefix_key.shape[1]) @ prefix_value
    ).view(kv_heads, rows, -1, size).transpose(0, 1) + to_own @ value
    return mixed.reshape(rows, num_heads, length, size).transpose(1, 2).contiguous(), None


AttentionInterface.register(SHARED_PREFIX, attention)
