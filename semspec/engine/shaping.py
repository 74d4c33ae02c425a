"""What a request changes of the logits before each draw: biases, penalties, a grammar. The logits themselves stay."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from semspec.engine.grammar import Matcher
from semspec.engine.logits import only
from semspec.errors import InvalidRequest
from semspec.types import Penalties

Shape = Callable[[Tensor], Tensor]
"""Changed logits `[vocab_size]` for one draw."""


class Counts:
    """The tokens of a context, counted for penalties. Not thread-safe."""

    def __init__(self, penalties: Penalties, prompt: Sequence[int], written: Sequence[int], num_token_ids: int) -> None:
        """Raises: InvalidRequest when a bias is of no token."""
        unknown = [token for token, _ in penalties.logit_bias if token >= num_token_ids]
        if unknown:
            message = f"logit_bias: {unknown[0]} is no token of this model; its ids are below {num_token_ids}"
            raise InvalidRequest(message, "logit_bias")
        self._penalties = penalties
        self._biased = torch.tensor([token for token, _ in penalties.logit_bias], dtype=torch.int64)
        self._biases = torch.tensor([bias for _, bias in penalties.logit_bias])
        self._written = torch.bincount(torch.tensor(written, dtype=torch.int64), minlength=num_token_ids)
        self._seen = self._written > 0
        if penalties.repetition != 1:
            self._seen[torch.tensor(prompt, dtype=torch.int64)] = True

    def add(self, token: int) -> None:
        """Count a written token."""
        self._written[token] += 1
        self._seen[token] = True

    def applied(self, logits: Tensor) -> Tensor:
        """A changed copy of `logits` `[vocab_size]`, fp32. See `Penalties`."""
        penalties, changed = self._penalties, logits.float().clone()
        written, seen = self._written.to(logits.device), self._seen.to(logits.device)
        if len(self._biased):
            changed[self._biased.to(logits.device)] += self._biases.to(logits.device)
        if penalties.repetition != 1:
            factors = torch.where(changed > 0, 1 / penalties.repetition, penalties.repetition)
            changed = torch.where(seen, changed * factors, changed)
        return changed - penalties.frequency * written - penalties.presence * (written > 0)


class Shaping:
    """The changes to a generation's logits, draw by draw. Not thread-safe."""

    def __init__(self, matcher: Matcher | None, counts: Counts | None) -> None:
        self._matcher, self._counts = matcher, counts

    def first(self) -> Shape:
        """For the first draw."""
        return partial(self._shaped, allowed=self._matcher.allowed() if self._matcher else None)

    def after(self, token: int) -> Shape:
        """For the draw after `token`, which is written now. It is to be used before the next call."""
        if self._counts:
            self._counts.add(token)
        return partial(self._shaped, allowed=self._matcher.allowed_after(token) if self._matcher else None)

    def _shaped(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        return only(self._counts.applied(logits) if self._counts else logits, allowed)
