"""What Redis keeps of a generation beside its segments: enough to go on with it, and to understand it."""

import json
from collections.abc import Mapping

from pydantic import TypeAdapter

from gateway.generation.request import ChoiceRequest, Request
from gateway.readiness import Served
from gateway.store.store import Store, missing_generation
from semspec.errors import Conflict
from semspec.records import Json
from semspec.types import Context, Piece

_REQUEST = TypeAdapter(Request)

ENDED = ("finished", "cancelled")
"""States that no gateway leaves again."""


def meta(choice: ChoiceRequest) -> dict[str, str]:
    """The fields of a generation that begins."""
    generation = choice.generation
    prompt = generation.context.pieces[0]
    return {
        "status": "running",
        "created": str(choice.request.created),
        "model": choice.request.model,
        "seed": str(generation.sampling.seed),
        "session": choice.request.session or "",
        "parameters": choice.parameters.model_dump_json(),
        "prompt": json.dumps({"text": prompt.text, "token_ids": list(prompt.token_ids), "tokenizer": prompt.tokenizer}),
        "models": json.dumps(_models(choice.served)),
        "index": str(choice.index),
        "budget": str(generation.max_tokens),
        "call": _REQUEST.dump_json(choice.request).decode(),
    }


async def owned(id: str, owner: str, store: Store) -> dict[str, str]:
    """The fields of a generation of this owner's.

    Raises: NotFound, of another's as if there were none; Unavailable.
    """
    fields = await store.generation(id)
    if request(fields).owner != owner:
        raise missing_generation(id)
    return fields


def request(meta: Mapping[str, str]) -> Request:
    """The request that the fields belong to."""
    return _REQUEST.validate_json(meta["call"])


def choice_request(meta: Mapping[str, str], served: Served) -> ChoiceRequest:
    """The choice whose fields these are. Raises: Conflict when it has not ended and other models are served by now."""
    if meta["status"] not in ENDED and json.loads(meta["models"]) != _models(served):
        raise Conflict("the models or probes have changed since this generation began; start a new one", "id")
    prompt = json.loads(meta["prompt"])
    piece = Piece(prompt["text"], tuple(prompt["token_ids"]), prompt["tokenizer"])
    return ChoiceRequest.of(request(meta), int(meta["index"]), Context((piece,)), int(meta["budget"]), served)


def public(id: str, meta: Mapping[str, str]) -> Json:
    """What a client may see of it."""
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


def _models(served: Served) -> Json:
    return {
        "draft": served.draft.fingerprint,
        "target": served.target.fingerprint,
        "draft_probe": served.verifier.draft_probe,
        "target_probe": served.verifier.target_probe,
    }
