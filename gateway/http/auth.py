"""Who asks, and what may be asked by anyone."""

from typing import Annotated

from fastapi import Depends, Request
from starlette.datastructures import Headers

from gateway.parts import Parts
from semspec.errors import Unauthenticated

_OPEN = frozenset({"/", "/health", "/ready"})


def is_open(method: str, path: str) -> bool:
    """Whether no key is asked for: the playground's own files, and what probes of a process's health ask."""
    return method in ("GET", "HEAD") and (path in _OPEN or path.startswith("/static/"))


def key_of(headers: Headers) -> bytes | None:
    """The key of `Authorization: Bearer KEY`; None without one."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip().encode("latin-1") if scheme.lower() == "bearer" and key.strip() else None


def unauthenticated(key: bytes | None) -> Unauthenticated:
    """What becomes of a request with no key, or with one that is not known. It is not repeated."""
    if key is None:
        return Unauthenticated("an API key is missing; send it as the header `Authorization: Bearer KEY`")
    return Unauthenticated("this API key is not known here; the gateway's operator gives one out")


def owner_of(request: Request) -> str:
    """Name of the API key the request came with; empty where none is asked for."""
    owner: str = getattr(request.state, "owner", "")
    return owner


def is_stranger(request: Request) -> bool:
    """Whether keys are asked for, and this request to an open path came without one."""
    parts: Parts = request.app.state.parts
    return parts.keys is not None and not hasattr(request.state, "owner")


OwnerOf = Annotated[str, Depends(owner_of)]
"""A route's parameter of this type is given the name of the caller's API key."""
