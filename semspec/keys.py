"""API keys of a gateway, which knows their hashes alone: who reads its configuration cannot ask."""

import asyncio
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from semspec.certificates import Renewed
from semspec.errors import InvalidRequest

NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""Of a key: whose it is."""

_ENTRY = re.compile(rf"({NAME.pattern}):([0-9A-Fa-f]{{64}})")
_LOOK_S = 1.0


def new_key() -> str:
    """A key of 256 random bits."""
    return f"sk-{secrets.token_urlsafe(32)}"


def digest(key: bytes) -> bytes:
    """SHA-256 of a key, 32 bytes. It needs neither salt nor a slow hash: 256 random bits cannot be guessed."""
    return hashlib.sha256(key).digest()


def entry(name: str, key: str) -> str:
    """What a gateway's configuration says of a key: `NAME:SHA256`. Raises: InvalidRequest for a name that is none."""
    if not NAME.fullmatch(name):
        raise InvalidRequest("the name of a key is 1 to 64 letters, digits, dots, underscores and hyphens", "name")
    return f"{name}:{digest(key.encode()).hex()}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One key. Several of one name are one owner's: the old and the new while a key is replaced."""

    name: str
    digest: bytes


def read_entries(given: str, file: Path | None) -> tuple[Entry, ...]:
    """The entries `NAME:SHA256` of a text and a file, separated by commas or white space; `#` begins a comment.

    Raises: ValueError, without a word of either: by mistake they may hold a key itself.
    """
    filed = _entries(_text(file)) if file else ()
    if file and not filed:
        raise ValueError("the file has no entry")
    entries = _entries(given) + filed
    _check_owners(entries)
    return entries


class Keys:
    """The keys that may ask now. Their file is looked at every second, so that replacing one needs no restart."""

    def __init__(self, given: str, file: Path | None) -> None:
        """Raises: ValueError."""
        self._file = file
        self._renewed = Renewed([file] if file else [], partial(read_entries, given, file))
        self._entries = self._renewed.get()

    def owner(self, key: bytes) -> str | None:
        """The name a key goes by, if it is one. Each is compared, and in constant time: timing tells nothing."""
        asked, name = digest(key), None
        for known in self._entries:
            if hmac.compare_digest(known.digest, asked):
                name = known.name
        return name

    async def watch(self) -> None:
        """Look at the file for ever. One that cannot be used leaves the keys as they are."""
        while self._file is not None:
            await asyncio.sleep(_LOOK_S)
            self._entries = await asyncio.to_thread(self._renewed.get)


def _entries(text: str) -> tuple[Entry, ...]:
    lines = (line.partition("#")[0].replace(",", " ") for line in text.splitlines())
    return tuple(_entry(number, word) for number, word in enumerate(" ".join(lines).split(), 1))


def _entry(number: int, word: str) -> Entry:
    match = _ENTRY.fullmatch(word)
    if match is None:
        raise ValueError(f"entry {number} is not NAME:SHA256, the hash as 64 hexadecimal digits")
    return Entry(match[1], bytes.fromhex(match[2]))


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
