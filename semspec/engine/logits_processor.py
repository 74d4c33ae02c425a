"""Changes to a copy of the logits before each draw: biases, penalties, a grammar and a minimum number of tokens."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor

from semspec.engine.grammars import Grammars, Matcher
from semspec.engine.requests import Generate
from semspec.engine.tokenization import ModelTokenizer
from semspec.types import Penalties

LogitsTransform = Callable[[Tensor], Tensor]
"""Returns a changed copy of the logits `[vocab_size]` of one draw."""


class Penalizer:
    """Applies biases and penalties, and counts the tokens of a context for them. Not thread-safe."""

    def __init__(
        self,
        penalties: Penalties,
        prompt: Sequence[int],
        written: Sequence[int],
        num_token_ids: int,
    ) -> None:
        self._penalties = penalties
        self._biased = torch.tensor([token for token, _ in penalties.logit_bias], dtype=torch.int64)
        self._biases = torch.tensor([bias for _, bias in penalties.logit_bias])
        self._written = torch.bincount(
            torch.tensor(written, dtype=torch.int64), minlength=num_token_ids
        )
        self._seen = self._written > 0
        if penalties.repetition != 1:
            self._seen[torch.tensor(prompt, dtype=torch.int64)] = True

    def add(self, token: int) -> None:
        """Count a written token."""
        self._written[token] += 1
        self._seen[token] = True

    def apply(self, logits: Tensor) -> Tensor:
        """Return a changed copy of `logits` `[vocab_size]`, fp32. See `Penalties`."""
        penalties, changed = self._penalties, logits.float().clone()
        written, seen = self._written.to(logits.device), self._seen.to(logits.device)
        if len(self._biased):
            changed[self._biased.to(logits.device)] += self._biases.to(logits.device)
        if penalties.repetition != 1:
            factors = torch.where(changed > 0, 1 / penalties.repetition, penalties.repetition)
            changed = torch.where(seen, changed * factors, changed)
        return changed - penalties.frequency * written - penalties.presence * (written > 0)


class LogitsProcessor:
    """Changes the logits of one generation, draw by draw. Not thread-safe."""

    def __init__(
        self,
        matcher: Matcher | None,
        penalizer: Penalizer | None,
        eos_ids: Iterable[int],
        min_tokens: int,
    ) -> None:
        """`eos_ids` cannot be drawn before `min_tokens` other tokens."""
        self._matcher, self._penalizer = matcher, penalizer
        self._eos_ids, self._num_left = sorted(eos_ids), min_tokens

    def first(self) -> LogitsTransform:
        """Return the transform for the first draw."""
        return self._transform(self._matcher.allowed() if self._matcher else None)

    def after(self, token: int) -> LogitsTransform:
        """Count `token` as written, and return the transform for the next draw, valid until the next call."""
        if self._penalizer:
            self._penalizer.add(token)
        self._num_left -= 1
        return self._transform(self._matcher.allowed_after(token) if self._matcher else None)

    def _transform(self, allowed: Tensor | None) -> LogitsTransform:
        return partial(self._changed, allowed=allowed, may_end=self._num_left <= 0)

    def _changed(self, logits: Tensor, allowed: Tensor | None, may_end: bool) -> Tensor:
        changed = self._penalizer.apply(logits) if self._penalizer else logits
        if not may_end:
            changed = changed.clone()
            changed[self._eos_ids] = -torch.inf
        if allowed is None:
            return changed
        return changed.masked_fill(~allowed.to(logits.device), -torch.inf)


def make_logits_processor(
    request: Generate, tokens: Sequence[int], tokenizer: ModelTokenizer, grammars: Grammars | None
) -> LogitsProcessor | None:
    """Return the processor of a request that follows `tokens`; None if it leaves the logits unchanged.

    The caller has checked the request's grammar. Raises: InvalidRequest.
    """
    params = request.params
    if not request.changes_logits:
        return None
    penalizer = matcher = None
    if not params.penalties.is_neutral:
        penalizer = Penalizer(params.penalties, tokens, request.written, tokenizer.num_embeddings)
    if params.grammar and grammars:
        matcher = grammars.matcher(params.grammar, request.written)
    return LogitsProcessor(matcher, penalizer, tokenizer.eos_ids, params.min_tokens)
