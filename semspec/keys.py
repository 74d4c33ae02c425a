"""API keys of a gateway. Its configuration contains only their hashes, which do not grant access."""

import asyncio
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from semspec.certificates import FileBacked
from semspec.errors import InvalidRequest

NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""Pattern of a key's name, which is the name of its owner."""

MAX_KEY_LENGTH = 4096
"""A request's head has 16 KiB."""
_KEY = re.compile(rf"[!-~]{{1,{MAX_KEY_LENGTH}}}")
OPERATOR = "operator"
"""Option at the end of a key's entry: the key sees metrics by owner."""
_ENTRY = re.compile(rf"({NAME.pattern}):([0-9A-Fa-f]{{64}})((?::{OPERATOR})*)")
_CHECK_S = 1.0


def new_key() -> str:
    """Return a key of 256 random bits."""
    return f"sk-{secrets.token_urlsafe(32)}"


def checked_key(key: str) -> str:
    """Return `key` if it can be sent in a header unchanged. Raises: InvalidRequest, which does not quote the key."""
    if not _KEY.fullmatch(key):
        raise InvalidRequest(
            f"an API key is 1 to {MAX_KEY_LENGTH} printable ASCII characters without white space",
            remedy="check SEMSPEC_API_KEY or --api-key",
        )
    return key


def digest(key: bytes) -> bytes:
    """Return the SHA-256 of a key. It needs neither salt nor a slow hash: 256 random bits cannot be guessed."""
    return hashlib.sha256(key).digest()


def entry(name: str, key: str) -> str:
    """Return a key's entry in a gateway's configuration, `NAME:SHA256`. Raises: InvalidRequest for an invalid name."""
    if not NAME.fullmatch(name):
        raise InvalidRequest(
            "the name of a key is 1 to 64 letters, digits, dots, underscores and hyphens", "name"
        )
    return f"{name}:{digest(key.encode()).hex()}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One key. Entries of the same name have the same owner: the old and the new key during a replacement."""

    name: str
    digest: bytes
    is_operator: bool = False


def read_entries(given: str, file: Path | None) -> tuple[Entry, ...]:
    """Read the entries `NAME:SHA256` in a text and a file, separated by commas or white space; `#` begins a comment. An
    entry may end with `:operator`.

    Raises: ValueError, which does not quote text or file: by mistake they may contain a key.
    """
    file_entries = _entries(_text(file)) if file else ()
    if file and not file_entries:
        raise ValueError("the file has no entry")
    entries = _entries(given) + file_entries
    _check_owners(entries)
    return entries


class Keys:
    """The valid keys. The file is checked every second, so that replacing a key needs no restart."""

    def __init__(self, given: str, file: Path | None) -> None:
        """Raises: ValueError, as `read_entries`."""
        self._file = file
        self._renewed = FileBacked([file] if file else [], partial(read_entries, given, file))
        self._entries = self._renewed.get()

    def owner(self, key: bytes) -> str | None:
        """Return the name of a valid key, else None. Compares with every entry in constant time."""
        key_digest, name = digest(key), None
        for entry in self._entries:
            if hmac.compare_digest(entry.digest, key_digest):
                name = entry.name
        return name

    def is_operator(self, owner: str) -> bool:
        """Return whether every key of this owner is an operator's; false for a name without a key."""
        entries = [entry for entry in self._entries if entry.name == owner]
        return bool(entries) and all(entry.is_operator for entry in entries)

    async def watch(self) -> None:
        """Reload the file when it changes, until cancelled. An unusable file leaves the keys unchanged."""
        while self._file is not None:
            await asyncio.sleep(_CHECK_S)
            self._entries = await asyncio.to_thread(self._renewed.get)


def _entries(text: str) -> tuple[Entry, ...]:
    lines = (line.partition("#")[0].replace(",", " ") for line in text.splitlines())
    return tuple(_entry(number, word) for number, word in enumerate(" ".join(lines).split(), 1))


def _entry(number: int, text: str) -> Entry:
    match = _ENTRY.fullmatch(text)
    if match is None:
        raise ValueError(
            f"entry {number} is not NAME:SHA256, the hash as 64 hexadecimal digits, with :{OPERATOR} after it at most"
        )
    return Entry(match[1], bytes.fromhex(match[2]), bool(match[3]))


def _check_owners(entries: Iterable[Entry]) -> None:
    owners = dict[bytes, str]()
    for entry in entries:
        if owners.setdefault(entry.digest, entry.name) != entry.name:
            raise ValueError("one key has two names; give each owner a key of its own")


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError as error:
        raise ValueError(f"the file cannot be read ({error.strerror})") from error
