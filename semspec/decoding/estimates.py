"""Exponentially weighted estimates, in plain sums."""

from typing import Literal

DECAY = 0.97
"""What a further observation leaves of the weight of those before it: about the last thirty count."""
MIN_WEIGHT = 1e-9
"""Evidence of this weight fades no more, lest its products vanish; any new observation outweighs it."""
RIDGE = 0.001
"""Relative ridge penalty of the least-squares fit."""


class Ratio:
    """A ratio of two running sums, with a prior value worth `pseudo_count` counts."""

    def __init__(self, prior: float = 0.0, pseudo_count: float = 0.0) -> None:
        self._prior, self._pseudo_count = prior, pseudo_count
        self._amount = self._count = 0.0

    @property
    def value(self) -> float | None:
        """None while there is nothing to go by."""
        count = self._pseudo_count + self._count
        return (self._pseudo_count * self._prior + self._amount) / count if count else None

    def add(self, amount: float, count: float = 1.0) -> None:
        self._amount += amount
        self._count += count

    def decay(self) -> None:
        self._amount *= DECAY
        self._count *= DECAY


class Line:
    """Least squares of `ms = call_ms * calls + token_ms * tokens`, neither of them negative.

    Where the data cannot tell the two apart, as with calls that are all alike, the time is put down to what it
    `ridge`.
    """

    def __init__(self, ridge: Literal["calls", "tokens"]) -> None:
        self._ridge = (RIDGE, 0.0) if ridge == "tokens" else (0.0, RIDGE)
        self._sums = [0.0] * 5

    def add(self, calls: float, tokens: float, ms: float) -> None:
        products = (calls * calls, calls * tokens, tokens * tokens, calls * ms, tokens * ms)
        self._sums = [before + product for before, product in zip(self._sums, products, strict=True)]

    def decay(self) -> None:
        if self._sums[0] > MIN_WEIGHT:
            self._sums = [before * DECAY for before in self._sums]

    def fit(self) -> tuple[float, float] | None:
        """(ms of a call, ms of a token); None while there is nothing to go by."""
        calls, mixed, tokens, calls_ms, tokens_ms = self._sums
        if not calls or not tokens:
            return None
        calls_doubted, tokens_doubted = calls * (1 + self._ridge[0]), tokens * (1 + self._ridge[1])
        determinant = calls_doubted * tokens_doubted - mixed * mixed
        call_ms = (calls_ms * tokens_doubted - tokens_ms * mixed) / determinant
        token_ms = (tokens_ms * calls_doubted - calls_ms * mixed) / determinant
        if call_ms < 0:
            return 0.0, tokens_ms / tokens
        return (call_ms, token_ms) if token_ms >= 0 else (calls_ms / calls, 0.0)
