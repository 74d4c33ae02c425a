"""What is stored of a generation."""

import json
from typing import Annotated

from fastapi import APIRouter, Path

from gateway.parts import PartsOf
from semspec.trace import Json

router = APIRouter(prefix="/v1/generations")

GenerationId = Annotated[str, Path(pattern="^[A-Za-z0-9-]{1,64}$")]


@router.get("/{id}")
async def generation(id: GenerationId, parts: PartsOf) -> Json:
    """Parameters, models, prompt and outcome."""
    return _public(id, await parts.store.generation(id))


@router.get("/{id}/trace")
async def trace(id: GenerationId, parts: PartsOf) -> Json:
    """The records of all kept segments so far, in order."""
    meta = await parts.store.generation(id)
    return {
        "id": id,
        "object": "generation.trace",
        "status": meta["status"],
        "degraded": json.loads(meta.get("degraded", "false")),
        "segments": list(await parts.store.trace(id)),
    }


def _public(id: str, meta: dict[str, str]) -> Json:
    return {
        "id": id,
        "object": "generation",
        "status": meta["status"],
        "created": int(meta["created"]),
        "model": meta["model"],
        "seed": int(meta["seed"]),
        "session": meta["session"] or None,
        "finish_reason": meta.get("finish_reason"),
        "degraded": json.loads(meta.get("degraded", "false")),
        **{name: json.loads(meta.get(name, "null")) for name in ("parameters", "models", "prompt", "usage")},
    }
