"""Compressed JSON lines: the same records give the same bytes."""

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def read_compressed(file: Path) -> list[Any]:
    """Return the records of a file of `write_compressed`."""
    return [json.loads(line) for line in gzip.decompress(file.read_bytes()).decode().splitlines()]


def write_compressed(file: Path, records: Iterable[Any]) -> None:
    """Write each record as a line."""
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    file.write_bytes(gzip.compress(text.encode(), mtime=0))
