"""Stored conversations: their routes and response schemas."""

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, Path

from semspec.errors import Conflict, NotFound
from semspec.records import Body
from semspec.types import Role
from semspec_gateway.api.shared.document import STORED, errors
from semspec_gateway.api.shared.middleware import OwnerOf
from semspec_gateway.api.shared.requests import SESSION_NAME
from semspec_gateway.store.store import Store, stored_name

SessionName = Annotated[str, Path(pattern=SESSION_NAME)]


class Turn(Body):
    """One message of a conversation."""

    role: Role
    content: str


class Session(Body):
    """A stored conversation."""

    id: str
    object: Literal["session"]
    turns: list[Turn]


class ListedSession(Body):
    """A conversation in the list."""

    id: str
    object: Literal["session"]
    updated: int
    """Seconds since 1970 of its last turn."""
    num_turns: int
    question: str
    """The beginning of its first user's turn, at most 200 characters."""


class SessionList(Body):
    """The last conversations, the latest first."""

    object: Literal["list"]
    data: list[ListedSession]


class SessionForgotten(Body):
    """A deleted conversation."""

    id: str
    object: Literal["session"]
    deleted: Literal[True]


def router(store: Store) -> APIRouter:
    """`/v1/sessions`: stored conversations."""
    routes = APIRouter(prefix="/v1/sessions", tags=["sessions"])

    @routes.get("", responses=errors(503))
    async def sessions(owner: OwnerOf) -> SessionList:
        """The owner's last conversations."""
        sessions = await store.listed(owner)
        histories = await asyncio.gather(
            *(store.turns(stored_name(name, owner)) for name, _ in sessions)
        )
        listed = []
        for (name, updated), turns in zip(sessions, histories, strict=True):
            if turns:
                question = next((turn.content for turn in turns if turn.role == "user"), "")[:200]
                numbers = {"updated": int(updated), "num_turns": len(turns)}
                listed.append(
                    ListedSession(id=name, object="session", question=question, **numbers)
                )
        return SessionList(object="list", data=listed)

    @routes.get("/{id}", responses=STORED)
    async def session(id: SessionName, owner: OwnerOf) -> Session:
        """The turns of a conversation so far, without reasoning."""
        turns = await store.turns(stored_name(id, owner))
        if not turns:
            raise _missing(id)
        return Session.model_validate(
            {"id": id, "object": "session", "turns": turns}, from_attributes=True
        )

    @routes.delete("/{id}", responses=errors(400, 404, 409, 503))
    async def forget(id: SessionName, owner: OwnerOf) -> SessionForgotten:
        """Delete a conversation; answers 409 while a request uses it."""
        try:
            await store.forget(id, owner)
            await store.unlist(owner, id)
        except NotFound:
            raise _missing(id) from None
        except Conflict:
            remedy = "wait for it, or cancel its generation"
            raise Conflict(f"session {id} is answering a request", "id", remedy=remedy) from None
        return SessionForgotten(id=id, object="session", deleted=True)

    return routes


def _missing(id: str) -> NotFound:
    return NotFound(f"session {id} does not exist, or has expired", "id")
