"""The committed files, and how they differ from what the code does."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.test_openapi.test_document import described

FOLDER = Path(__file__).parent
TRACES = FOLDER / "traces"
CONTRACT = FOLDER / "openapi.json"
CHANGES = FOLDER / "openapi-changes.txt"
"""Every difference of today's OpenAPI document from `CONTRACT` that is intended."""
TOLERANCE = 1e-3
"""Of probabilities: cached and recomputed states round differently."""
PROSE = ("description", "summary", "title")


def read_trace(name: str) -> Any:
    """The frozen cases of a strategy, or the answers over HTTP."""
    return json.loads((TRACES / f"{name}.json").read_text())


def write_trace(name: str, cases: dict[str, Any]) -> None:
    """Write one line for each segment of each case; numbers have 4 decimals."""
    lines = [
        f"{json.dumps(case)}:{_compact(value) if isinstance(value, dict) else _lines(value)}"
        for case, value in cases.items()
    ]
    (TRACES / f"{name}.json").write_text("{" + ",\n".join(lines) + "}\n")


def _lines(items: list[Any]) -> str:
    return "[\n" + ",\n".join(map(_compact, items)) + "]"


def _compact(value: Any) -> str:
    return json.dumps(_rounded(value), ensure_ascii=False, separators=(",", ":"))


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return round(value, 4) if isinstance(value, float) else value


def differences(frozen: Any, current: Any) -> list[str]:
    """The paths at which two JSON values differ, with both values; numbers may differ by `TOLERANCE`."""
    before, after = dict(_leaves(frozen)), dict(_leaves(current))
    return [
        f"{path}: {before.get(path)!r} is now {after.get(path)!r}"
        for path in dict.fromkeys((*before, *after))
        if not _is_equal(before.get(path), after.get(path))
    ]


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) or isinstance(other, float):
        return None not in (one, other) and abs(one - other) <= TOLERANCE
    return bool(one == other)


def contract() -> Any:
    """The OpenAPI document of the gateway, without its prose."""
    return _without_prose(described())


def contract_changes() -> list[str]:
    """The lines by which the contract differs from the frozen one, sorted by path."""
    before, after = set(_lines_of(json.loads(CONTRACT.read_text()))), set(_lines_of(contract()))
    lines = [(line, "-") for line in before - after] + [(line, "+") for line in after - before]
    return [f"{sign} {line}" for line, sign in sorted(lines)]


def _lines_of(document: Any) -> Iterator[str]:
    for path, value in _leaves(document, are_sets=True):
        yield f"{path}: {json.dumps(value)}"


def _leaves(value: Any, path: str = "", are_sets: bool = False) -> Iterator[tuple[str, Any]]:
    """Each scalar or empty value with its path. `are_sets`: the order of the scalars of a list says nothing."""
    if isinstance(value, dict) and value:
        for name, item in value.items():
            yield from _leaves(item, f"{path}/{name}", are_sets)
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            is_member = are_sets and not isinstance(item, dict | list)
            yield from _leaves(item, f"{path}[{'' if is_member else index}]", are_sets)
    else:
        yield path, value


def _without_prose(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_prose(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: _without_prose(item)
        for name, item in value.items()
        if not (name in PROSE and isinstance(item, str))
    }
