"""Certificates in PEM files, checked before a server starts, and reloading of changed files."""

import logging
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Generic, Never, TypeVar

from semspec.files import file_state

T = TypeVar("T")

logger = logging.getLogger(__name__)


class FileBacked(Generic[T]):
    """An object that `make` builds from files, and rebuilds when they are written or replaced, also through a link.

    `make` raises ValueError for unusable files. In a rebuild, the error is logged and the previous object is kept.
    """

    def __init__(self, files: Sequence[Path], make: Callable[[], T]) -> None:
        self._files, self._make = files, make
        self._seen, self._made = self._states(), make()

    def get(self) -> T:
        """Return the current object, rebuilt if the files have changed."""
        states = self._states()
        if states != self._seen:
            self._seen, names = states, ", ".join(map(str, self._files))
            try:
                self._made = self._make()
                logger.info("reloaded %s", names)
            except ValueError as error:
                logger.error("%s changed and cannot be used, keeping the old: %s", names, error)
        return self._made

    def _states(self) -> list[tuple[int, ...] | None]:
        return list(map(file_state, self._files))


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return a context for TLS 1.2 or newer with this chain and key. Raises: ValueError when they do not fit."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for path in (certificate, key):
        read(path)
    try:
        context.load_cert_chain(certificate, key, _no_password)
    except OSError as error:
        raise ValueError(
            f"{certificate} and {key} are not a PEM certificate and its key: {error}"
        ) from error
    return context


def reloading_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return a `server_context` that reloads changed files when a client connects. Raises: as `server_context`."""
    renewed = FileBacked([certificate, key], partial(server_context, certificate, key))

    def renew(connection: ssl.SSLObject, name: str | None, requested: ssl.SSLContext) -> None:
        connection.context = renewed.get()

    listening = renewed.get()
    listening.sni_callback = renew  # OpenSSL's only callback between ClientHello and ServerHello
    return listening


def check_pair(certificate: Path | None, key: Path | None) -> None:
    """Check a certificate and its key. Raises: ValueError when one is missing, or they do not belong together."""
    if certificate and key:
        server_context(certificate, key)
    elif certificate or key:
        raise ValueError(
            f"the {'key' if certificate else 'certificate'} is missing; give both or neither"
        )


def check_authority(authority: Path) -> None:
    """Check a CA's file. Raises: ValueError when it contains no certificate."""
    read(authority)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(authority)
    except OSError as error:
        raise ValueError(f"{authority} does not contain a PEM certificate: {error}") from error


def read(path: Path) -> bytes:
    """Read a file. Raises: ValueError with the file name when it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error


def _no_password() -> Never:  # otherwise OpenSSL prompts at the terminal
    raise ValueError("the key has a password; give a key without one")
