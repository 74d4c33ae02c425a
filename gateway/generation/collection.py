"""The collection: answers whose owners consent, listed for `semspec train collect`.

A listed answer is a stored generation; the list in Redis has its id only. So nothing is kept longer than without the
collection, and an answer whose owner no longer consents is not handed out.
"""

import asyncio
import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from zlib import crc32

from pydantic import ValidationError

from semspec.decoding import renders_its_own
from semspec.errors import NotFound, SemspecError
from semspec.gateway.generation.output import ChoiceOutput
from semspec.gateway.generation.request import ChoiceRequest, Request, stored_choice
from semspec.gateway.metrics import Metrics
from semspec.gateway.readiness import Readiness
from semspec.gateway.served import Served
from semspec.gateway.settings import GatewaySettings, pattern_of
from semspec.gateway.store.leases import Leases
from semspec.gateway.store.replies import reading
from semspec.keys import COLLECTOR, CONSENTS, Keys
from semspec.records import SegmentTrace
from semspec.types import Segment, Segmentation, SegmentEnd, uniform

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    """A collected choice."""

    choice: ChoiceRequest
    segments: tuple[Segment, ...]
    """Those that end at a boundary, from the first on: after each of them a next segment can be sampled."""

    @property
    def question(self) -> str:
        """The user's turns, or the plain prompt."""
        return "\n\n".join(self._turns) or self.choice.prompt

    @property
    def conversation(self) -> str:
        """A digest that all answers of a conversation share: of its session, or of its first user's turn."""
        request = self.choice.request
        named = f"session {request.owner}/{request.session}" if request.session else ""
        first = named or next(iter(self._turns), self.choice.prompt)
        return hashlib.sha256(first.encode()).hexdigest()[:16]

    @property
    def _turns(self) -> list[str]:
        return [message.content for message in self.choice.request.messages if message.role == "user"]


@dataclass(frozen=True, slots=True)
class Page:
    """A part of the collection."""

    answers: tuple[Answer, ...]
    next: str
    served: Served
    segmentation: Segmentation


class Collection:
    """Lists finished answers of keys with the option `consents`, and hands them to keys with `collector`."""

    def __init__(
        self, leases: Leases, keys: Keys, readiness: Readiness, metrics: Metrics, settings: GatewaySettings
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
        return request.may_be_collected and is_usual and is_drawn and self._keys.has(request.owner, CONSENTS)

    def may_read(self, owner: str) -> bool:
        return self._keys.has(owner, COLLECTOR)

    def offer(self, choice: ChoiceRequest, output: ChoiceOutput) -> None:
        """List a finished choice, which is stored, if it is wanted. Its texts are not logged."""
        if self.wants(choice.request):
            self._leases.background.spawn(self._list(choice, output))

    async def _list(self, choice: ChoiceRequest, output: ChoiceOutput) -> None:
        try:
            self._metrics.collection.labels(await self._listed(choice, output)).inc()
        except SemspecError as error:
            self._metrics.collection.labels("failed").inc()
            _log.warning("generation %s is not collected: %s", choice.id, error.message)

    async def _listed(self, choice: ChoiceRequest, output: ChoiceOutput) -> str:
        if self._is_excepted(choice, (record.segment for record in output.records)):
            return "excepted"
        own_prompt = choice.request.messages and renders_its_own(choice.served.draft, choice.served.target)
        if own_prompt and choice.prompts.draft is None:
            return "no draft prompt"
        await self._store.collect(choice.id, self._settings.collect.max_answers)
        return "listed"

    async def read(self, after: str, limit: int) -> Page:
        """The answers listed after a position: those of the models that serve now, of owners who consent now, and that
        the expression of now does not except.

        Raises: Unavailable, Mismatch.
        """
        served = self._readiness.require()
        entries = await self._store.collected(after, limit)
        found = await asyncio.gather(*(self._answer(id, served) for _, id in entries))
        position = entries[-1][0] if entries else after
        return Page(tuple(filter(None, found)), position, served, self._settings.defaults.segmentation)

    async def _answer(self, id: str, served: Served) -> Answer | None:
        try:
            meta = await self._store.generation(id)
        except NotFound:  # it has expired
            return None
        choice, lines = stored_choice(id, meta, served), await self._store.trace(id)
        is_own = choice.generation.segmentation is self._settings.defaults.segmentation and _is_of(meta, served)
        if not (is_own and self._keys.has(choice.request.owner, CONSENTS)):
            return None
        with reading(f"generation {id}"):
            segments = [SegmentTrace.model_validate_json(line).segment() for line in lines]
        if self._is_excepted(choice, segments):
            return None
        return Answer(choice, tuple(takewhile(lambda segment: segment.end is SegmentEnd.BOUNDARY, segments)))

    def _is_excepted(self, choice: ChoiceRequest, segments: Iterable[Segment]) -> bool:
        if self._except is None:
            return False
        try:
            self._except.validate_python("".join((choice.prompt, *(segment.text for segment in segments))))
        except ValidationError as error:  # also of a text that cannot be searched
            return error.errors(include_input=False, include_context=False)[0]["type"] != "string_pattern_mismatch"
        return True


def _is_of(meta: Mapping[str, str], served: Served) -> bool:
    """Whether the models that serve now wrote a generation."""
    models = json.loads(meta["models"])
    return bool((models["draft"], models["target"]) == (served.draft.fingerprint, served.target.fingerprint))
