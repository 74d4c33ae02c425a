"""Who asks."""

from typing import Annotated

from fastapi import Depends, Request


def owner_of(request: Request) -> str:
    """Name of the API key the request came with; empty where none is asked for."""
    owner: str = getattr(request.state, "owner", "")
    return owner


OwnerOf = Annotated[str, Depends(owner_of)]
"""A route's parameter of this type is given the name of the caller's API key."""
