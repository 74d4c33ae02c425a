"""Digests of whole weight files, computed once: a cache remembers them by path, size, inode, mtime and ctime."""

import hashlib
import json
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LEAST_BYTES = 64 << 20
"""Smaller files are hashed each time, which takes a tenth of a second."""
NUM_THREADS = 4
"""Files hashed at a time; hashing releases the interpreter's lock."""

logger = logging.getLogger(__name__)


def file_digests(paths: list[Path]) -> list[str]:
    """The SHA-256 of each file, from the cache where its size, inode and times are unchanged.

    A core hashes about 0.8 GB a second; a disk may be slower. Raises: OSError.
    """
    with ThreadPoolExecutor(min(NUM_THREADS, os.cpu_count() or 1)) as threads:
        return list(threads.map(_file_digest, paths))


def cache_folder() -> Path:
    """Where digests are remembered: `$XDG_CACHE_HOME/semspec/digests`, by default in `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "semspec" / "digests"


def _file_digest(path: Path) -> str:
    path = path.resolve()  # of the hub's cache, the blob
    identity, num_bytes = _identity(path), path.stat().st_size
    entry = _entry(path) if num_bytes >= LEAST_BYTES else None
    if (remembered := _remembered(entry, identity)) is not None:
        return remembered
    if entry:
        logger.info("hashing %s, %.1f GB of weights", path, num_bytes / 1e9)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if _identity(path) == identity:  # else it changed meanwhile
        _remember(entry, {**identity, "sha256": digest})
    return digest


def _identity(path: Path) -> dict[str, object]:
    stat = path.stat()
    return {
        "path": str(path),
        "size": stat.st_size,
        "inode": stat.st_ino,
        "mtime_ns": stat.st_mtime_ns,
        "ctime_ns": stat.st_ctime_ns,
    }


def _entry(path: Path) -> Path | None:
    """The file that remembers the digest of `path`; None for a user without a home folder."""
    try:
        return cache_folder() / f"{hashlib.sha256(str(path).encode(errors='surrogateescape')).hexdigest()[:32]}.json"
    except RuntimeError:
        return None


def _remembered(entry: Path | None, identity: dict[str, object]) -> str | None:
    try:
        fields = json.loads(entry.read_text()) if entry else {}
        digest = fields.pop("sha256")
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None
    return digest if fields == identity and isinstance(digest, str) else None


def _remember(entry: Path | None, fields: dict[str, object]) -> None:
    if entry is None:
        return
    partial = entry.with_suffix(f".{os.getpid()}.partial")
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(fields))
        partial.replace(entry)
    except OSError as error:
        logger.info("the digest of %s is not remembered, and computed again next time: %s", fields["path"], error)
