"""SHA-256 digests of files. A cache keeps those of large files, by path, size, inode, mtime and ctime."""

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from semspec.files import file_digest, file_state, read_json, replacing

logger = logging.getLogger(__name__)

LEAST_BYTES = 64 << 20
"""Smaller files are hashed each time, which takes a tenth of a second."""
NUM_THREADS = 4
"""Files hashed at once; hashing releases the interpreter's lock."""


def cache_home() -> Path:
    """Return the folder of semspec's caches: `$XDG_CACHE_HOME/semspec`, by default `~/.cache/semspec`.

    Raises: RuntimeError for a user without a home folder.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "semspec"


def file_digests(paths: Sequence[Path]) -> list[str]:
    """Return the SHA-256 of each file, from the cache if its size, inode and times are unchanged. Raises: OSError.

    A core hashes about 0.8 GB a second; a disk may be slower.
    """
    with ThreadPoolExecutor(min(NUM_THREADS, os.cpu_count() or 1)) as threads:
        return list(threads.map(_file_digest, paths))


def cache_folder() -> Path:
    """Return the folder of the cache: `digests` in `cache_home`."""
    return cache_home() / "digests"


def _file_digest(path: Path) -> str:
    path = path.resolve()  # in the hub's cache, the blob
    identity, num_bytes = _identity(path), path.stat().st_size
    entry = _entry(path) if num_bytes >= LEAST_BYTES else None
    if (cached := _read_entry(entry, identity)) is not None:
        return cached
    if entry:
        logger.info("hashing %s, %.1f GB of weights", path, num_bytes / 1e9)
    digest = file_digest(path)
    if _identity(path) == identity:  # else it changed meanwhile
        _write_entry(entry, [*identity, digest])
    return digest


def _identity(path: Path) -> list[object]:
    return [str(path), *(file_state(path) or ())]


def _entry(path: Path) -> Path | None:
    """Return the cache's file for `path`; None for a user without a home folder."""
    try:
        name = hashlib.sha256(str(path).encode(errors="surrogateescape")).hexdigest()[:32]
        return cache_folder() / f"{name}.json"
    except RuntimeError:
        return None


def _read_entry(entry: Path | None, identity: list[object]) -> str | None:
    try:
        *known, digest = read_json(entry) if entry else [None]
    except (OSError, ValueError, TypeError):
        return None
    return digest if known == identity and isinstance(digest, str) else None


def _write_entry(entry: Path | None, fields: list[object]) -> None:
    if entry is None:
        return
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with replacing(entry) as partial:
            partial.write_text(json.dumps(fields))
    except OSError as error:
        logger.info(
            "cannot cache the digest of %s, which will be computed again at the next start: %s",
            fields[0],
            error,
        )
