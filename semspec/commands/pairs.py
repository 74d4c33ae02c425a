"""`semspec pairs`: lists the named pairs, their properties and the location of their files."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from semspec.commands import program
from semspec.engine.hub import format_bytes
from semspec.errors import Mismatch
from semspec.pairs import NamedPair, find, named_pairs


def run(arguments: argparse.Namespace) -> int:
    for pair in named_pairs():
        print(f"{pair.name}: {pair.description}")
        for name, value in describe_pair(pair, arguments.models):
            print(f"  {name:<9} {value}")
        print()
    print(f"Serve one with: {program()} serve --pair NAME [--models FOLDER]")
    return 0


def describe_pair(pair: NamedPair, models: Path | None) -> Iterator[tuple[str, str]]:
    """Yield the names and values of a pair's properties."""
    yield "licence", pair.licence
    yield "size", format_bytes(sum(file.num_bytes for file in pair.files.values()))
    yield "memory", "not measured" if pair.memory_bytes is None else format_bytes(pair.memory_bytes)
    yield from (("measured", sentence) for sentence in pair.measured or ("nothing yet",))
    for role, file in pair.files.items():
        try:
            path = find(file, models)
        except Mismatch as error:
            yield role, str(error)
        else:
            yield (
                role,
                str(
                    path
                    or f"not here: {format_bytes(file.num_bytes)} to fetch from {file.repository}"
                ),
            )
