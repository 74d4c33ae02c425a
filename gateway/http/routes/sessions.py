"""What is remembered of a conversation."""

from typing import Annotated

from fastapi import APIRouter, Path

from gateway.generations.sessions import stored_name
from gateway.http.middleware import OwnerOf
from gateway.http.openapi.responses import FORGOTTEN, SESSION
from gateway.http.schemas import SESSION_NAME
from gateway.parts import PartsOf
from semspec.errors import Conflict, NotFound
from semspec.records import Json

router = APIRouter(prefix="/v1/sessions", tags=["sessions"])

SessionName = Annotated[str, Path(pattern=SESSION_NAME)]


@router.get("/{id}", responses=SESSION)
async def session(id: SessionName, owner: OwnerOf, parts: PartsOf) -> Json:
    """The turns of a conversation so far, reasoning left out."""
    turns = await parts.store.turns(stored_name(id, owner))
    if not turns:
        raise _missing(id)
    return {
        "id": id,
        "object": "session",
        "turns": [{"role": turn.role, "content": turn.content} for turn in turns],
    }


@router.delete("/{id}", responses=FORGOTTEN)
async def forget(id: SessionName, owner: OwnerOf, parts: PartsOf) -> Json:
    """Forget a conversation; one that is being answered is in use."""
    try:
        await parts.store.forget(stored_name(id, owner))
    except NotFound:
        raise _missing(id) from None
    except Conflict:
        raise Conflict(f"session {id} is answering a request; wait for it, or cancel its generation", "id") from None
    return {"id": id, "object": "session", "deleted": True}


def _missing(id: str) -> NotFound:
    return NotFound(f"session {id} does not exist, or has expired", "id")
