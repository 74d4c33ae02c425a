"""How long a generation may take, by its budget."""

import pytest

from semspec.gateway.generation.checks import deadline_s
from tests.gateway.support import make_settings


class Choice:
    """A choice with a token budget."""

    def __init__(self, max_tokens: int) -> None:
        self.generation = self
        self.max_tokens = max_tokens


@pytest.mark.parametrize(
    ("given", "budgets", "expected"),
    [(None, [1024], 600), (None, [1024, 32_768], 3276.8), (30.0, [32_768], 30)],
)
def test_deadline_follows_from_the_largest_budget(given: float | None, budgets: list[int], expected: float) -> None:
    settings = make_settings(generation_deadline_s=given)
    assert deadline_s([Choice(budget) for budget in budgets], settings) == pytest.approx(expected)  # type: ignore[misc]
