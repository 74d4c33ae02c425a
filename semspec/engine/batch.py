"""Many continuations of one context at once, offline: the sampler behind probe data. Same results as one by one."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache

from semspec.core import Sampling, Segmentation
from semspec.engine.causal_lm import CausalLM
from semspec.engine.sampling import draw_tokens
from semspec.engine.segmentation import RULES
from semspec.engine.surprisal import surprisal


@dataclass(frozen=True, slots=True)
class BatchReading:
    """What a model feels at alternative segments of one context."""

    states: Tensor
    """Pooled, fp32 `[num_segments, num_layers + 1, hidden_size]` (`states-v1`)."""
    surprisal: Tensor
    """fp32 `[num_segments, num_surprisal_features]`."""


class ContextBatch:
    """A context fed once, continued many times."""

    def __init__(self, lm: CausalLM, context: Sequence[int]) -> None:
        self._lm, self._context = lm, list(context)
        self._kv = DynamicCache()
        self._logits = lm.forward(self._context, self._kv).logits[-1]

    def sample(
        self, sampling: Sampling, seeds: Sequence[int], segmentation: Segmentation, max_tokens: int
    ) -> list[list[int]]:
        """One next segment a seed, end-of-sequence or boundary token included, in the order of `seeds`.

        Only segmentations that end inside a token are supported: a look-ahead token is not taken back.
        """
        rows: list[list[int]] = [[] for _ in seeds]
        live, kv, logits = list(range(len(seeds))), self._repeated(len(seeds)), self._logits.expand(len(seeds), -1)
        for position in range(len(self._context), len(self._context) + max_tokens):
            tokens = draw_tokens(logits, sampling, [seeds[row] for row in live], position)
            for row, token in zip(live, tokens, strict=True):
                rows[row].append(token)
            kept = [i for i, row in enumerate(live) if not self._is_complete(rows[row], segmentation)]
            if not kept:
                break
            if len(kept) < len(live):
                live = [live[i] for i in kept]
                kv.batch_select_indices(torch.tensor(kept))
            ids = torch.tensor([[rows[row][-1]] for row in live], device=self._lm.device)
            logits = self._lm.forward_batch(ids, kv).logits[:, -1]
        return rows

    def read(self, segments: Sequence[Sequence[int]]) -> BatchReading:
        """States and surprisal of each of `segments`, alternatives to one another after the context."""
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
        return self._lm.text_of(self._context, segment)

    def _repeated(self, num_rows: int) -> DynamicCache:
        kv = DynamicCache()
        for index, layer in enumerate(self._kv.layers):
            kv.update(*(t.expand(num_rows, -1, -1, -1) for t in (layer.keys, layer.values)), index)
        return kv

    def _is_complete(self, tokens: list[int], segmentation: Segmentation) -> bool:
        return tokens[-1] in self._lm.eos_ids or RULES[segmentation].ends_inside(self.text_of(tokens))
