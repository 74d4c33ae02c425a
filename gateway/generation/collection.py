"""The collection: answers whose owners consent, listed for `semspec train collect`.

A listed answer is a stored generation; the list in Redis has its id only. So nothing is kept longer than without the
collection, and an answer whose owner no longer consents is not handed out.
"""

import asyncio
import hashlib
import json
import logging
from collections.abc import Iterable
from dataclasses import asdict
from itertools import takewhile
from typing import Literal, Self
from zlib import crc32

from pydantic import ValidationError

from semspec.decoding import renders_its_own
from semspec.errors import NotFound, SemspecError
from semspec.gateway.generation.choice import Choice, stored_choice, stored_trace
from semspec.gateway.generation.request import Request
from semspec.gateway.metrics import Metrics
from semspec.gateway.readiness import Readiness
from semspec.gateway.served import Served
from semspec.gateway.settings import GatewaySettings, pattern_of
from semspec.gateway.store.leases import Leases
from semspec.keys import COLLECTOR, CONSENTS, Keys
from semspec.records import Body, SegmentText
from semspec.types import Segment, Segmentation, SegmentEnd, uniform

_log = logging.getLogger(__name__)


class GenerationPrompt(Body):
    """The prompt as a model received it; no ids: the model tokenized the text."""

    text: str
    token_ids: list[int]
    tokenizer: str


class CollectedModel(Body):
    """Fingerprints of a served model and of its tokenizer."""

    fingerprint: str
    tokenizer: str


class CollectedAnswer(Body):
    """A finished choice whose owner consents."""

    id: str
    owner: str
    conversation: str
    """The same for all answers of a conversation."""
    question: str
    """The user's turns, or the plain prompt."""
    prompt: GenerationPrompt
    draft_prompt: GenerationPrompt | None
    """Null where the draft reads the target's."""
    segments: list[SegmentText]
    """Those that end at a boundary, from the first on."""

    @classmethod
    def of(cls, choice: Choice, segments: Iterable[Segment]) -> Self:
        request, prompts = choice.request, choice.prompts
        turns = [message.content for message in request.messages if message.role == "user"] or [
            choice.prompt
        ]
        first = f"session {request.owner}/{request.session}" if request.session else turns[0]
        bounded = takewhile(lambda segment: segment.end is SegmentEnd.BOUNDARY, segments)
        return cls(
            id=choice.id,
            owner=request.owner,
            conversation=hashlib.sha256(first.encode()).hexdigest()[:16],
            question="\n\n".join(turns),
            prompt=GenerationPrompt(**asdict(prompts.target)),
            draft_prompt=GenerationPrompt(**asdict(prompts.draft)) if prompts.draft else None,
            segments=list(map(SegmentText.of_segment, bounded)),
        )


class CollectionPage(Body):
    """Answers of the models that serve now, under the gateway's default segmentation."""

    object: Literal["list"]
    draft: CollectedModel
    target: CollectedModel
    segmentation: Segmentation
    data: list[CollectedAnswer]
    next: str
    """For `after`; the same as sent if there is nothing more."""


class Collection:
    """Lists finished answers of keys with the option `consents`, and hands them to keys with `collector`."""

    def __init__(
        self,
        leases: Leases,
        keys: Keys,
        readiness: Readiness,
        metrics: Metrics,
        settings: GatewaySettings,
    ) -> None:
        self._leases, self._store = leases, leases.store
        self._keys, self._readiness = keys, readiness
        self._metrics, self._settings = metrics, settings
        self._except = pattern_of(settings.collect.exclude) if settings.collect.exclude else None

    def wants(self, request: Request) -> bool:
        """Whether the request's answers are to be listed: a share of those whose owner consents. Answers that are held
        to a grammar are not what the models say by themselves, and those with `store: false` are not to be kept."""
        plan, settings = request.plan, self._settings
        is_usual = not plan.grammar and plan.segmentation is settings.defaults.segmentation
        is_drawn = uniform(crc32(request.id.encode()), "collect", 0) < settings.collect.share
        return (
            request.may_be_collected
            and is_usual
            and is_drawn
            and self._keys.has(request.owner, CONSENTS)
        )

    def may_read(self, owner: str) -> bool:
        return self._keys.has(owner, COLLECTOR)

    def offer(self, choice: Choice) -> None:
        """List a finished choice, which is stored, if it is wanted. Its texts are not logged."""
        if self.wants(choice.request):
            self._leases.background.spawn(self._list(choice))

    async def _list(self, choice: Choice) -> None:
        own_prompt = choice.request.messages and renders_its_own(
            choice.served.draft, choice.served.target
        )
        result = "listed"
        try:
            if self._is_excepted(choice.prompt + choice.text):
                result = "excepted"
            elif own_prompt and choice.prompts.draft is None:
                result = "no draft prompt"
            else:
                await self._store.collect(choice.id, self._settings.collect.max_answers)
        except SemspecError as error:
            result = "failed"
            _log.warning("generation %s is not collected: %s", choice.id, error.message)
        self._metrics.collection.labels(result).inc()

    async def read(self, after: str, limit: int) -> CollectionPage:
        """The answers listed after a position: those of the models that serve now, of owners who consent now, and that
        the expression of now does not except.

        Raises: Unavailable, Mismatch.
        """
        served = self._readiness.require()
        entries = await self._store.collected(after, limit)
        found = await asyncio.gather(*(self._answer(id, served) for _, id in entries))
        return CollectionPage(
            object="list",
            draft=CollectedModel.model_validate(served.draft, from_attributes=True),
            target=CollectedModel.model_validate(served.target, from_attributes=True),
            segmentation=self._settings.defaults.segmentation,
            data=list(filter(None, found)),
            next=entries[-1][0] if entries else after,
        )

    async def _answer(self, id: str, served: Served) -> CollectedAnswer | None:
        try:
            meta = await self._store.generation(id)
        except NotFound:  # it has expired
            return None
        choice = stored_choice(id, meta, served)
        models = [json.loads(meta["models"])[role] for role in ("draft", "target")]
        is_own = models == [served.draft.fingerprint, served.target.fingerprint]
        is_own &= choice.generation.segmentation is self._settings.defaults.segmentation
        if not (is_own and self._keys.has(choice.request.owner, CONSENTS)):
            return None
        segments = [record.segment for record in await stored_trace(id, self._store)]
        if self._is_excepted(choice.prompt + "".join(segment.text for segment in segments)):
            return None
        return CollectedAnswer.of(choice, segments)

    def _is_excepted(self, text: str) -> bool:
        if self._except is None:
            return False
        try:
            self._except.validate_python(text)
        except ValidationError as error:  # also of a text that cannot be searched
            return (
                error.errors(include_input=False, include_context=False)[0]["type"]
                != "string_pattern_mismatch"
            )
        return True
