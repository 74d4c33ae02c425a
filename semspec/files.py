"""Files that a user names."""

from pathlib import Path


def regular(path: Path) -> Path:
    """`path`. Raises: OSError when there is something else than a file, such as a device, which may have no end."""
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is no file")
    return path
