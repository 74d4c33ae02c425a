"""How long a generation may take, by its budget."""

from types import SimpleNamespace
from typing import Any

import pytest

from semspec.gateway.generation.checks import deadline_s
from tests.gateway.support import make_settings


@pytest.mark.parametrize(
    ("given", "budgets", "expected"),
    [(None, [1024], 600), (None, [1024, 32_768], 3276.8), (30.0, [32_768], 30)],
)
def test_deadline_follows_from_the_largest_budget(given: float | None, budgets: list[int], expected: float) -> None:
    settings = make_settings(generation_deadline_s=given)
    choices: list[Any] = [SimpleNamespace(generation=SimpleNamespace(max_tokens=budget)) for budget in budgets]
    assert deadline_s(choices, settings) == pytest.approx(expected)
