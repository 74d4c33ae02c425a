"""Requests and choices as Redis holds them. The stored fields suffice to resume a generation and to explain it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pydantic import TypeAdapter

from semspec.decoding import Prompts, Strategies
from semspec.errors import Conflict
from semspec.records import read_stored
from semspec.types import Piece, SegmentRecord
from semspec_gateway.generation.choice import Choice
from semspec_gateway.generation.request import GenerationRequest
from semspec_gateway.served import Served
from semspec_gateway.store.store import Store, reading

_REQUEST = TypeAdapter(GenerationRequest)
_PIECE = TypeAdapter(Piece)


def stored_fields(choice: Choice) -> dict[str, str]:
    """Return the fields of one choice that Redis stores when it begins; its segments are stored separately."""
    request = choice.request
    return {
        "status": "running",
        "request": request.id,
        "owner": request.owner,
        "is_kept": json.dumps(request.is_kept),
        "index": str(choice.index),
    }


def request_fields(choices: Sequence[Choice]) -> dict[str, str]:
    """Return the fields that all choices of a request share: each text once, and not as JSON in JSON."""
    request, step = choices[0].request, choices[0].request.num_choices_per_prompt
    fields = {
        "call": _REQUEST.dump_json(replace(request, grammar="")).decode(),
        "grammar": request.grammar,
        "models": json.dumps(choices[0].served.identity),
        "num_turns": str(choices[0].num_turns),
    }
    for number, choice in enumerate(choices[::step]):
        prompts = choice.prompts
        fields |= {
            f"prompt:{number}": _PIECE.dump_json(prompts.target).decode(),
            f"draft_prompt:{number}": _PIECE.dump_json(prompts.draft).decode()
            if prompts.draft
            else "",
            f"fallback:{number}": prompts.fallback or "",
            f"budget:{number}": str(choice.generation.max_tokens),
        }
    return fields


def stored_request(id: str, meta: Mapping[str, str], strategies: Strategies) -> GenerationRequest:
    """The request stored in the fields of the generation `id`. Raises: Unavailable when they cannot be read."""
    with reading(f"generation {id}"):
        request = _REQUEST.validate_json(meta["call"], context=strategies)
        return replace(request, grammar=meta["grammar"])


async def stored_trace(id: str, store: Store, start: int = 0) -> list[SegmentRecord]:
    """The records of the generation `id` from number `start` on. Raises: Unavailable, also if they cannot be read."""
    lines = await store.trace(id, start)
    with reading(f"generation {id}"):
        return list(map(read_stored, lines))


def stored_choice(
    id: str, meta: Mapping[str, str], served: Served, request: GenerationRequest | None = None
) -> Choice:
    """Return the choice stored in the fields of the generation `id`; `request`, if they were read before.

    Raises: Conflict when it has not ended and other models are served now; Unavailable when they cannot be read.
    """
    request = request or stored_request(id, meta, served.strategies)
    with reading(f"generation {id}"):
        if (
            meta["status"] not in ("finished", "cancelled")
            and json.loads(meta["models"]) != served.identity
        ):
            raise Conflict(
                "the models or probes have changed since this generation began",
                "id",
                remedy="start a new one",
            )
        index = int(meta["index"])
        prompts, max_tokens = stored_prompts(request, index, meta)
        return Choice(request, index, prompts, max_tokens, served, int(meta["num_turns"]))


def stored_prompts(
    request: GenerationRequest, index: int, meta: Mapping[str, str]
) -> tuple[Prompts, int]:
    """Return the prompt as each model reads it, and the budget of tokens. To be called within `reading`."""
    number = index // request.num_choices_per_prompt
    draft = meta[f"draft_prompt:{number}"]
    prompts = Prompts(
        _PIECE.validate_json(meta[f"prompt:{number}"]),
        _PIECE.validate_json(draft) if draft else None,
        meta[f"fallback:{number}"] or None,
    )
    return prompts, int(meta[f"budget:{number}"])
