"""Which API keys may ask, and whose they are. Only hashes are known here: who reads the configuration cannot ask."""

import asyncio
import hmac
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from semspec.file_state import FileState, file_state
from semspec.keys import NAME, digest

_log = logging.getLogger(__name__)
_ENTRY = re.compile(rf"({NAME.pattern}):([0-9A-Fa-f]{{64}})")
_LOOK_S = 1.0


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
        self._given = given
        self._file = file
        self._seen = _state(file)
        self._entries = read_entries(given, file)

    def owner(self, key: bytes) -> str | None:
        """The name a key goes by, if it is one. Each is compared, and in constant time: timing tells nothing."""
        asked, name = digest(key), None
        for entry in self._entries:
            if hmac.compare_digest(entry.digest, asked):
                name = entry.name
        return name

    async def watch(self) -> None:
        """Look at the file for ever."""
        while self._file is not None:
            await asyncio.sleep(_LOOK_S)
            await asyncio.to_thread(self.look)

    def look(self) -> None:
        """Read the file again if it has changed. One that cannot be used leaves the keys as they are."""
        if (state := _state(self._file)) == self._seen:
            return
        self._seen = state
        try:
            self._entries = read_entries(self._given, self._file)
        except ValueError as error:
            _log.error("%s cannot be used, so the API keys stay as they were: %s", self._file, error)
        else:
            _log.info("%s was read again: %d API keys", self._file, len(self._entries))


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


def _state(file: Path | None) -> FileState | None:
    return None if file is None else file_state(file)
