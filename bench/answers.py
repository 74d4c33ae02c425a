"""The answers of a run, compressed: what a report commits beside its tables."""

import gzip
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from semspec.bench.record import Record, as_line
from semspec.training.files import replacing


def write_answers(path: Path, records: Iterable[Record], with_traces: bool = False) -> None:
    """Write records to `path`, a `.jsonl.gz`, which is long with their traces; equal records give equal bytes."""
    lines = "".join(as_line(record if with_traces else replace(record, trace=())) for record in records)
    with replacing(path) as partial:
        partial.write_bytes(gzip.compress(lines.encode(), mtime=0))


def read_answers(path: Path) -> list[Record]:
    """What `write_answers` wrote. Raises: OSError, ValueError."""
    return [Record(**json.loads(line)) for line in gzip.decompress(path.read_bytes()).splitlines()]
