"""The folder of a stack's logs and sockets. The stack removes it; after SIGKILL, the next stack does."""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from semspec.stack.child import StackError

_PREFIX = "semspec-"
_LOCK = "lock"
"""A file that the process of the stack holds locked; the kernel releases it with the process."""


class PrivateFolder:
    """A folder with mode 700, with a path short enough for a Unix socket in it (108 bytes)."""

    def __init__(self) -> None:
        """Raises: StackError."""
        try:
            usual = tempfile.gettempdir()
            parent = Path(usual if len(usual) < 60 else "/tmp")
            _remove_abandoned(parent)
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
            self._lock = (self.path / _LOCK).open("wb")
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        except OSError as error:
            raise StackError(
                f"no folder for logs and sockets: {error}",
                remedy="set TMPDIR to one that can be written",
            ) from error

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _remove_abandoned(parent: Path) -> None:
    """Remove the folders of this user's stacks whose process has ended."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # removed meanwhile, without a lock, or locked by a stack that runs
            if folder.lstat().st_uid == os.getuid() and not folder.is_symlink():
                with (folder / _LOCK).open("rb") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
