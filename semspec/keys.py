"""API keys of a gateway, which is told their hashes alone."""

import hashlib
import re
import secrets

from semspec.errors import InvalidRequest

NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""Of a key: whose it is."""


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
