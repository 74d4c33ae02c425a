"""What is counted before a compiler sees a schema."""

import json

import pytest

from semspec.grammars.limits import check_grammar, check_pattern, check_schema
from tests.grammars.schemas import COUNTED, HARMLESS


@pytest.mark.parametrize("name", COUNTED)
def test_schema_over_a_limit_is_refused(name: str) -> None:
    schema, message = COUNTED[name]
    with pytest.raises(ValueError, match=message):
        check_schema(schema)


@pytest.mark.parametrize("name", HARMLESS)
def test_schema_within_the_limits_passes(name: str) -> None:
    check_schema(HARMLESS[name])


def test_each_schema_of_a_grammar_is_counted() -> None:
    large = json.dumps({"maxItems": 10**9})
    check_grammar('start: "%json" answer\nanswer: %json {"type": "integer"}')
    with pytest.raises(ValueError, match="add up to"):
        check_grammar(f'start: a | b\na: %json {{"type": "integer"}}\nb: %json   {large}')
    with pytest.raises(ValueError, match="deeper than 100"):
        check_grammar(f"start: %json {'[' * 100_000}")


def test_long_expression_is_refused() -> None:
    check_pattern("[0-9]{3}")
    with pytest.raises(ValueError, match="add up to"):
        check_pattern("[0-9]{3,99999}")
