"""JSON and JSON lines, and files that are written whole or not at all."""

import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from semspec import files
from semspec.errors import InvalidRequest, Mismatch, Unavailable
from semspec.files import parse_json

Row = dict[str, Any]

AGAIN = "delete {} and run the same command again"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file that replaces `path` once it is complete and synced to disk. Raises:
    Unavailable when the disk is full; the previous file then remains."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with files.replacing(path) as partial:
            yield partial
            with partial.open("rb") as file:
                os.fsync(file.fileno())
    except BaseException as error:
        if _is_full(error):
            free = shutil.disk_usage(path.parent).free / 1e9
            raise Unavailable(
                f"no room to write {path} ({free:.2f} GB free)",
                remedy="make room and run the same command again, which keeps finished shards",
            ) from error
        raise


def _is_full(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno in _FULL
    return isinstance(error, SafetensorError) and any(
        os.strerror(number) in str(error) for number in _FULL
    )


def write_json(path: Path, value: object) -> None:
    with replacing(path) as partial:
        partial.write_text(json.dumps(value, indent=2) + "\n")


def read_json(path: Path, remedy: str = "") -> Any:
    """Read the object in a JSON file. Raises: Mismatch, with `remedy` (by default to delete it), when there is none."""
    try:
        value = files.read_json(path)
        if isinstance(value, dict):
            return value
        reason = "not a JSON object"
    except (OSError, ValueError) as error:
        reason = str(error)
    raise Mismatch(f"{path} is damaged: {reason}", remedy=remedy or AGAIN.format(path))


def json_lines(path: Path) -> Iterator[tuple[str, Row]]:
    """Yield `path:line` and the object of each line that is not blank. Raises: InvalidRequest."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                place = f"{path}:{number}"
                try:
                    value = parse_json(line)
                except ValueError as error:
                    raise InvalidRequest(
                        f"{place} is not JSON: {error}", remedy="one question a line"
                    ) from error
                if not isinstance(value, dict):
                    raise InvalidRequest(
                        f"{place} is not a JSON object", remedy="one question a line"
                    )
                yield place, value
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"{path} is not UTF-8 text", remedy="give a JSON lines file"
        ) from error
    except OSError as error:
        raise InvalidRequest(
            f"cannot read {path}: {error.strerror}", remedy="give a JSON lines file"
        ) from error


def complete_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file that is appended to; then cut off a last line that was not written to its end."""
    num_bytes = 0
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            num_bytes += len(line)
            yield line
    if num_bytes < path.stat().st_size:
        os.truncate(path, num_bytes)


def plain(value: Any, num_digits: int | None = None) -> Any:
    """Convert `value` to plain JSON types, optionally rounded; null for a number that could not be computed."""
    if isinstance(value, float):
        return (
            None
            if not isfinite(value)
            else value
            if num_digits is None
            else round(value, num_digits)
        )
    if isinstance(value, Mapping):
        return {str(name): plain(item, num_digits) for name, item in value.items()}
    return [plain(item, num_digits) for item in value] if isinstance(value, list | tuple) else value


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """Flatten nested mappings; names are joined by dots."""
    if not isinstance(value, Mapping):
        return {name: value}
    return {
        key: leaf
        for inner, item in value.items()
        for key, leaf in flat(item, f"{name}.{inner}" if name else inner).items()
    }
