"""Files that a user names, files that are written whole or not at all, and digests."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any

from pydantic import ValidationError

MAX_DEPTH = 100
"""Levels of lists and objects in JSON that a file or a setting may have; Python's own stack has 1,000."""


class TooDeep(ValueError):
    """JSON has more than `MAX_DEPTH` levels."""

    def __init__(self) -> None:
        super().__init__(f"its JSON has more than {MAX_DEPTH} levels of lists and objects")


def regular(path: Path) -> Path:
    """Return `path`. Raises: OSError when it is not a regular file but, for example, a device, which may never end."""
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is not a regular file")
    return path


def parse_json(text: str) -> Any:
    """Parse the JSON of a file or a setting. Raises: ValueError in one line, also for more than `MAX_DEPTH` levels."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise TooDeep from None
    containers = _containers([value])
    for _ in range(MAX_DEPTH):
        containers = [child for container in containers for child in _containers(container)]
    if containers:
        raise TooDeep
    return value


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises: OSError; ValueError, as `parse_json`."""
    return parse_json(regular(path).read_text(encoding="utf-8"))


def _containers(value: dict[str, Any] | list[Any]) -> list[dict[str, Any] | list[Any]]:
    """Return the lists and objects in a list or object."""
    children = value.values() if isinstance(value, dict) else value
    return [child for child in children if isinstance(child, dict | list)]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file that replaces `path` when the block ends; if the block fails, `path` stays as it is."""
    # A random name: several processes, of several hosts, may write the same file at the same time.
    partial = path.with_name(f"{path.name}.{token_hex(8)}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def first_error(error: ValidationError, whole: str = "") -> str:
    """Return the first invalid field and its problem; `whole`: name of the value as a whole."""
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or whole}: {first['msg']}"


def digest_of(value: object) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of a value as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def file_state(path: Path) -> tuple[int, ...] | None:
    """Return a value that changes when the file is written, replaced or made readable, or when its link target changes.

    It is None if the file does not exist.
    """
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size
