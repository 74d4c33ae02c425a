"""Whether a file is still the one that was read."""

from pathlib import Path

FileState = tuple[int, ...]


def file_state(path: Path) -> FileState | None:
    """Other than before once a file was written, replaced or made readable, or is a link that leads elsewhere, as a
    mounted secret's does; None: it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size
