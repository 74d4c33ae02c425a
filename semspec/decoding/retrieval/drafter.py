"""Proposals from a datastore, next to the draft model of a service."""

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from time import perf_counter
from typing import Any

import numpy as np

from semspec.decoding.retrieval.datastore import Datastore
from semspec.decoding.retrieval.ngrams import Match, agreed, as_text, earlier_match
from semspec.errors import InvalidRequest, Mismatch
from semspec.protocols import Engine, StepCounter
from semspec.types import (
    Context,
    Distribution,
    GenerationParams,
    ModelInfo,
    Piece,
    Proposal,
    Retrieval,
    RetrievalSource,
    shares_ordinary_tokens,
)

WITH_NEIGHBOURS: tuple[RetrievalSource, ...] = ("all", "datastore")
"""Sources that include semantic neighbours."""
WINDOW = 8192
"""Last tokens of a context that are searched."""
LEAST_MATCH = 3
"""Length in tokens of an n-gram that ranks before semantic neighbours."""
LEAST_SHARE = 0.3
"""A proposal ends where fewer of the places agree on its tokens."""


def propose(
    datastore: Datastore,
    context: Context,
    open_ids: Sequence[int],
    retrieval: Retrieval,
    num_tokens: int,
) -> Proposal:
    """Propose up to `num_tokens` tokens that followed the context's last tokens, or similar states, before. Each has
    probability 1. The proposal is empty if nothing is found. Takes about a millisecond.

    The longest n-gram wins, of equal ones that in the context itself. Semantic neighbours are used where there is no
    n-gram of `LEAST_MATCH` tokens; shorter n-grams where there are no neighbours either. The session's own part is the
    context of the call. Nothing is kept between calls, so no owner's text reaches another.

    Raises: InvalidRequest when the state is of another size, or an id is beyond any vocabulary.
    """
    start = perf_counter()
    text = _text(datastore.card.tokenizer, context.pieces, open_ids)
    found = _find_continuations(datastore, text, retrieval, num_tokens) if text else ()
    token_ids = agreed(found, num_tokens, LEAST_SHARE)
    certain = tuple(map(Distribution.certain, token_ids))
    layer = datastore.card.layer if retrieval.source in WITH_NEIGHBOURS else None
    duration_ms = (perf_counter() - start) * 1e3
    return Proposal(tuple(token_ids), certain, datastore.card.tokenizer, duration_ms, layer)


def _find_continuations(
    datastore: Datastore, text: str, retrieval: Retrieval, num_tokens: int
) -> Sequence[str]:
    """Return the texts that followed similar contexts."""
    matches: list[Match] = []  # the longest n-gram of each part, in order of preference
    if retrieval.source != "datastore":
        matches.append(earlier_match(text, num_tokens))
    if retrieval.source != "context":
        matches.append(datastore.static.match(text, num_tokens))
    best = max(matches, key=attrgetter("length"))
    near: tuple[str, ...] = ()
    if best.length < LEAST_MATCH and retrieval.source in WITH_NEIGHBOURS:
        near = _neighbour_continuations(datastore, text, retrieval.state, num_tokens)
    return near or best.continuations


def _neighbour_continuations(
    datastore: Datastore, text: str, state: bytes, num_tokens: int
) -> tuple[str, ...]:
    """Return the texts after neighbours of the state before the last token that continue with the same token."""
    if datastore.neighbours is None or not state:
        return ()
    if len(state) != (num_bytes := 4 * datastore.neighbours.hidden_size):
        raise InvalidRequest(
            f"retrieval.state: {len(state)} bytes, not {num_bytes}", "retrieval.state"
        )
    places = datastore.neighbours.near(np.frombuffer(state, "<f4"))
    followed = (datastore.static.following(place, num_tokens + 1) for place in places)
    return tuple(text_after[1:] for text_after in followed if text_after[:1] == text[-1])


def _text(tokenizer: str, pieces: Sequence[Piece], open_ids: Sequence[int]) -> str:
    """Return the last tokens, back to the last piece of another tokenizer, whose ids mean other text."""
    ids: list[int] = [*open_ids]
    for piece in reversed(pieces):
        if not shares_ordinary_tokens(piece.tokenizer, tokenizer) or len(ids) >= WINDOW:
            break
        ids = [*piece.token_ids, *ids]
    try:
        return as_text(ids[-WINDOW:])
    except UnicodeDecodeError:
        raise InvalidRequest("open_ids: an id is beyond the vocabulary", "open_ids") from None


class RetrievingDraft:
    """A draft's engine whose `propose` uses a datastore if `GenerationParams.retrieval` says so.

    See `semspec.protocols.Engine`: all that is not defined here is the engine's.
    """

    def __init__(self, engine: Engine | None, datastore: Datastore) -> None:
        """Without an `engine` there is no model, and all other calls raise `Mismatch`."""
        self._engine, self._datastore = engine, datastore

    @property
    def _model(self) -> Engine:
        if self._engine is None:
            raise Mismatch(
                "this service has a datastore and no model: use the strategy 'retrieval', or set SEMSPEC_DRAFT_MODEL"
            )
        return self._engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    @property
    def steps(self) -> StepCounter | None:
        return getattr(self._engine, "steps", None)

    async def info(self) -> ModelInfo:
        card = self._datastore.card
        none = ModelInfo("", "", card.tokenizer, 0, 0, 0, supports_logprobs=False)
        info = none if self._engine is None else await self._engine.info()
        return replace(info, datastore=card.digest, datastore_model=card.model)

    async def propose(
        self, context: Context, open_ids: Sequence[int], params: GenerationParams, num_tokens: int
    ) -> Proposal:
        if params.retrieval is None:
            return await self._model.propose(context, open_ids, params, num_tokens)
        return propose(self._datastore, context, open_ids, params.retrieval, num_tokens)

    async def aclose(self) -> None:
        if self._engine is not None:
            await self._engine.aclose()
