"""Drafter, target and verifier whose calls go to the best replica each."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from copy import copy
from dataclasses import dataclass, replace
from typing import Generic, Self, TypeVar

from semspec.clustering.equivalence import Alternatives
from semspec.errors import SemspecError
from semspec.rpc.clients import RemoteDrafter, RemoteTarget, RemoteVerifier, WritingClient
from semspec.rpc.pool.pool import ELSEWHERE, Pool
from semspec.rpc.pool.replica import Client, PoolOptions, Replica, ServiceSpec
from semspec.rpc.pool.resolver import Lookup, look_up
from semspec.types import (
    ChoiceScores,
    Context,
    GeneratedSegment,
    GenerationParams,
    Judgement,
    ModelInfo,
    Piece,
    Prompt,
    Proposal,
    Segment,
    SegmentEnd,
    SegmentScore,
    States,
    Token,
    VerifiedTokens,
    VerifierInfo,
)

C = TypeVar("C", bound=Client)
W = TypeVar("W", bound=WritingClient)


async def _model(client: WritingClient) -> object:
    return _identity(await client.info())


def _identity(info: ModelInfo) -> object:
    return info.fingerprint, info.tokenizer, info.state_convention, info.datastore


async def _probes(client: RemoteVerifier) -> object:
    return replace(await client.info(), build="")


DRAFTS = ServiceSpec("semspec.v1.Draft", RemoteDrafter, _model)
TARGETS = ServiceSpec("semspec.v1.Target", RemoteTarget, _model)
VERIFIERS = ServiceSpec("semspec.v1.Verifier", RemoteVerifier, _probes)


class PooledRole(Generic[C]):
    """A backend served by the replicas at an address list `host:port[,host:port...]`; a host may have many addresses.

    Construct within the running loop, close with `aclose`. Raises: InvalidRequest for an invalid address list.
    """

    def __init__(self, spec: ServiceSpec[C], addresses: str, options: PoolOptions, lookup: Lookup) -> None:
        self._pool = Pool(spec, addresses, options, lookup)

    @property
    def num_replicas(self) -> int:
        """Number of replicas that serve the model."""
        return self._pool.num_replicas

    @property
    def num_hung(self) -> int:
        """Number of replicas that have work and make no step."""
        return self._pool.num_hung

    @property
    def num_in_flight(self) -> int:
        """Calls in flight at all replicas."""
        return self._pool.num_in_flight

    async def aclose(self) -> None:
        """Cancel running calls and disconnect. Later calls raise Unavailable."""
        await self._pool.aclose()


@dataclass
class _Count:
    """A number that all views of a pool share."""

    num: int = 0


class _PooledWriter(PooledRole[W]):
    """The methods that draft and target share."""

    _model: object = None
    """Model that all calls of a view require; see `of`."""

    def __init__(self, spec: ServiceSpec[W], addresses: str, options: PoolOptions, lookup: Lookup) -> None:
        super().__init__(spec, addresses, options, lookup)
        self._whole_states = _Count()

    @property
    def num_whole_states(self) -> int:
        """Segments whose states came whole, since the replica did not hold the projection that the call named."""
        return self._whole_states.num

    def of(self, info: ModelInfo) -> Self:
        """A view of the same replicas whose calls use only those that serve this model."""
        view = copy(self)
        view._model = _identity(info)
        return view

    async def info(self) -> ModelInfo:
        """See `Model.info`."""
        return await self._pool.call(lambda model: model.info())

    async def encode(self, prompt: Prompt) -> Piece:
        """See `Model.encode`."""
        return await self._pool.call(lambda model: model.encode(prompt), model=self._model)

    async def generate(self, context: Context, params: GenerationParams) -> AsyncGenerator[GeneratedSegment, None]:
        """See `Model.generate`. A broken stream continues at another replica after its last segment.

        The text is the same, because each draw depends only on the seed and the position.
        """
        tried: dict[Replica[W], SemspecError] = {}
        kept: list[Segment] = []
        model = self._model
        while (rest := _rest(params, kept)) is not None:
            replica = await self._pool.choose(params.session, tried, model)
            model = model or replica.model
            stream = replica.client.generate(context.extended(*kept), rest)
            try:
                with replica.counted():
                    async with aclosing(stream):
                        while True:
                            async with replica.while_reachable():
                                generated = await anext(stream, None)
                            if generated is None:
                                return
                            self._note(params.projection, generated.states)
                            kept.append(generated.segment)
                            model, tried = model or replica.model, {}
                            yield generated
            except ELSEWHERE as error:
                replica.failed(error)
                tried[replica] = error

    def _note(self, digest: str, states: States | None) -> None:
        """Count states on which a replica was to apply the projection `digest`, and did not."""
        if digest and states is not None and not states.projection:
            self._whole_states.num += 1


class PooledDrafter(_PooledWriter[RemoteDrafter]):
    """A `Drafter` served by replicas of `semspec.v1.Draft`."""

    def __init__(self, addresses: str, options: PoolOptions, lookup: Lookup = look_up) -> None:
        super().__init__(DRAFTS, addresses, options, lookup)

    async def propose(
        self, context: Context, open_ids: Sequence[int], params: GenerationParams, num_tokens: int
    ) -> Proposal:
        """See `Drafter.propose`."""
        return await self._pool.call(
            lambda model: model.propose(context, open_ids, params, num_tokens), params.session, self._model
        )


class PooledTarget(_PooledWriter[RemoteTarget]):
    """A `Target` served by replicas of `semspec.v1.Target`."""

    def __init__(self, addresses: str, options: PoolOptions, lookup: Lookup = look_up) -> None:
        super().__init__(TARGETS, addresses, options, lookup)

    async def tokenize(self, text: str) -> list[Token]:
        """See `Target.tokenize`."""
        return await self._pool.call(lambda target: target.tokenize(text))

    async def score(
        self, context: Context, segments: Sequence[Segment], session: str = "", projection: str = ""
    ) -> list[SegmentScore]:
        """See `Target.score`."""

        scores = await self._pool.call(
            lambda target: target.score(context, segments, session, projection), session, self._model
        )
        for score in scores:
            self._note(projection, score.states)
        return scores

    async def verify_tokens(
        self, context: Context, open_ids: Sequence[int], proposal: Proposal, params: GenerationParams
    ) -> VerifiedTokens:
        """See `Target.verify_tokens`."""
        return await self._pool.call(
            lambda target: target.verify_tokens(context, open_ids, proposal, params), params.session, self._model
        )

    async def score_choices(
        self, context: Context, question: str, prefill: str, options: Sequence[str], session: str = ""
    ) -> ChoiceScores:
        """See `Target.score_choices`."""
        return await self._pool.call(
            lambda target: target.score_choices(context, question, prefill, options, session), session, self._model
        )


class PooledVerifier(PooledRole[RemoteVerifier]):
    """A `Verifier` served by replicas of `semspec.v1.Verifier`."""

    def __init__(self, addresses: str, options: PoolOptions, lookup: Lookup = look_up) -> None:
        super().__init__(VERIFIERS, addresses, options, lookup)

    async def info(self) -> VerifierInfo:
        """See `Verifier.info`."""
        return await self._pool.call(lambda verifier: verifier.info())

    async def judge(
        self, draft_states: Sequence[States], scores: Sequence[SegmentScore], probes: str = ""
    ) -> list[Judgement]:
        """See `Verifier.judge`."""
        return await self._pool.call(lambda verifier: verifier.judge(draft_states, scores, probes))

    async def cluster(self, group: Alternatives, ends: Sequence[SegmentEnd]) -> list[int | None]:
        """See `Clusterer.cluster`."""
        return await self._pool.call(lambda verifier: verifier.cluster(group, ends))


def _rest(params: GenerationParams, kept: Sequence[Segment]) -> GenerationParams | None:
    """Parameters for the rest of a call after the segments `kept`; None when it is complete."""
    if not kept:
        return params
    max_tokens = params.max_tokens - sum(len(segment.token_ids) for segment in kept)
    is_last = 0 < params.max_segments <= len(kept)
    if kept[-1].end is SegmentEnd.EOS or max_tokens <= 0 or is_last:
        return None
    return replace(params, max_tokens=max_tokens, max_segments=max(params.max_segments - len(kept), 0))
