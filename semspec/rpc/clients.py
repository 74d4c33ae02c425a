"""Drafter, target and verifier served over gRPC: the protocols of `semspec.protocols`.

Each call goes to the best replica of the service. Cancelling a call, or closing the generator of `generate`, cancels
the RPC, which stops the model. Construct a client within the running event loop, and close it with `aclose`.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from copy import copy
from dataclasses import replace
from typing import Any, Self, TypeVar

from semspec.clustering.equivalence import Alternatives
from semspec.errors import InternalError, SemspecError
from semspec.rpc.codec.messages import encode_request, message_of, read, read_each, reader
from semspec.rpc.codec.values import UNKNOWN_CLUSTER, check_length, invalid
from semspec.rpc.connection import DEFAULT_OPTIONS, ClientOptions
from semspec.rpc.pool import Pool
from semspec.rpc.replica import DRAFTS, TARGETS, VERIFIERS, Replica, ServiceSpec, identity
from semspec.rpc.resolver import Lookup, look_up
from semspec.types import (
    Context,
    GeneratedSegment,
    GenerationParams,
    Judgement,
    ModelInfo,
    OpenText,
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
from semspec.v2 import target_pb2, types_pb2, verifier_pb2

T = TypeVar("T")


class RemoteBackend:
    """A backend served by the replicas at an address list `host:port[,host:port...]`; a host may have many addresses.

    Raises: InvalidRequest for an invalid address list.
    """

    _service: ServiceSpec
    _model: object = None
    """Model that all calls of a view require; see `RemoteModel.of`."""

    def __init__(
        self, addresses: str, options: ClientOptions = DEFAULT_OPTIONS, lookup: Lookup = look_up
    ) -> None:
        self.pool = Pool(self._service, addresses, options, lookup)

    async def aclose(self) -> None:
        """Cancel running calls and disconnect. Later calls raise Unavailable."""
        await self.pool.aclose()

    async def _call(
        self, name: str, request: Any, read: Callable[[Any], T], context: Context | None = None
    ) -> T:
        session = "" if context is None else request.session
        return await self.pool.call(
            lambda connection: connection.call(name, request, read, context), session, self._model
        )


class RemoteModel(RemoteBackend):
    """The calls that draft and target share; see `Model`."""

    def of(self, info: ModelInfo) -> Self:
        """Return a view of the replicas whose calls use only those that serve this model."""
        view = copy(self)
        view._model = identity(info)
        return view

    async def info(self) -> ModelInfo:
        request = types_pb2.ModelInfoRequest()
        return await self.pool.call(
            lambda connection: connection.call("Info", request, reader(ModelInfo))
        )

    async def encode(self, prompt: Prompt) -> Piece:
        return await self._call("Encode", encode_request(prompt), _prompt)

    async def generate(
        self, context: Context, params: GenerationParams
    ) -> AsyncGenerator[GeneratedSegment, None]:
        """See `Model.generate`. A broken stream continues at another replica after its last segment.

        The text is the same, because each draw depends only on the seed and the position. Also raises DeadlineExceeded
        when no segment arrives within `ClientOptions.timeout_s`.
        """
        async with aclosing(self._written(context, params, streams_text=False)) as written:
            async for item in written:
                if isinstance(item, GeneratedSegment):
                    yield item

    def stream(
        self, context: Context, params: GenerationParams
    ) -> AsyncGenerator[GeneratedSegment | OpenText, None]:
        """See `Model.stream`."""
        return self._written(context, params, streams_text=True)

    async def _written(
        self, context: Context, params: GenerationParams, streams_text: bool
    ) -> AsyncGenerator[GeneratedSegment | OpenText, None]:
        tried: dict[Replica, SemspecError] = {}
        kept: list[Segment] = []
        model = self._model
        while (rest := _rest(params, kept)) is not None:
            replica = await self.pool.choose(params.session, tried, model)
            model = model or replica.model
            request = message_of(types_pb2.GenerateRequest, rest, streams_text=streams_text)
            written = list[GeneratedSegment]()
            stream = replica.connection.stream(
                "Generate", request, _generated, context.extended(*kept)
            )
            with replica.attempt(tried):
                async with aclosing(stream):
                    while True:
                        try:
                            async with replica.while_reachable():
                                generated = await anext(stream, None)
                        except SemspecError:
                            if _rest(params, kept) is None:  # only the end of the stream is missing
                                return
                            raise
                        if generated is None:
                            return
                        if isinstance(generated, OpenText):
                            yield generated
                            continue
                        written.append(generated)
                        _check_size(rest, written)
                        self._note(params.projection, generated.states)
                        kept.append(generated.segment)
                        model = model or replica.model
                        tried.clear()
                        yield generated

    def _note(self, digest: str, states: States | None) -> None:
        """Count states on which a replica was to apply the projection `digest`, and did not."""
        if digest and states is not None and not states.projection:
            self.pool.num_unprojected_states += 1


class RemoteDrafter(RemoteModel):
    """A `Drafter` served by `semspec.v2.Draft`."""

    _service = DRAFTS

    async def propose(
        self, context: Context, open_ids: Sequence[int], params: GenerationParams, num_tokens: int
    ) -> Proposal:
        request = message_of(
            types_pb2.ProposeRequest, params, open_ids=open_ids, num_tokens=num_tokens
        )
        return await self._call(
            "Propose", request, lambda response: read(Proposal, response.proposal), context
        )


class RemoteTarget(RemoteModel):
    """A `Target` served by `semspec.v2.Target`."""

    _service = TARGETS

    async def tokenize(self, text: str) -> list[Token]:
        request = message_of(target_pb2.TokenizeRequest, text=text)
        return await self._call(
            "Tokenize", request, lambda response: read_each(Token, response.tokens, "tokens")
        )

    async def score(
        self, context: Context, segments: Sequence[Segment], session: str = "", projection: str = ""
    ) -> list[SegmentScore]:
        def scores_in(response: target_pb2.ScoreResponse) -> list[SegmentScore]:
            check_length(response.scores, "scores", len(segments), "segments")
            return read_each(SegmentScore, response.scores, "scores")

        segments = [_without_stop(segment) for segment in segments]
        request = message_of(
            target_pb2.ScoreRequest, segments=segments, session=session, projection=projection
        )
        scores = await self._call("Score", request, scores_in, context)
        for score in scores:
            self._note(projection, score.states)
        return scores

    async def verify_tokens(
        self,
        context: Context,
        open_ids: Sequence[int],
        proposal: Proposal,
        params: GenerationParams,
    ) -> VerifiedTokens:
        def verified_in(response: target_pb2.VerifyTokensResponse) -> VerifiedTokens:
            verified, num_proposed = read(VerifiedTokens, response), len(proposal.token_ids)
            if verified.num_accepted > num_proposed:
                raise invalid(
                    "num_accepted", f"{verified.num_accepted} of {num_proposed} proposed tokens"
                )
            return verified

        request = message_of(
            target_pb2.VerifyTokensRequest, params, proposal=proposal, open_ids=open_ids
        )
        return await self._call("VerifyTokens", request, verified_in, context)


class RemoteVerifier(RemoteBackend):
    """A `Verifier` and `Clusterer` served by `semspec.v2.Verifier`."""

    _service = VERIFIERS

    async def info(self) -> VerifierInfo:
        return await self._call("Info", verifier_pb2.VerifierInfoRequest(), reader(VerifierInfo))

    async def judge(
        self, draft_states: Sequence[States], scores: Sequence[SegmentScore], probes: str = ""
    ) -> list[Judgement]:
        def judgements_in(response: verifier_pb2.JudgeResponse) -> list[Judgement]:
            check_length(response.judgements, "judgements", len(draft_states), "draft_states")
            return read_each(Judgement, response.judgements, "judgements")

        request = message_of(
            verifier_pb2.JudgeRequest, draft_states=draft_states, scores=scores, probes=probes
        )
        return await self._call("Judge", request, judgements_in)

    async def cluster(self, group: Alternatives, ends: Sequence[SegmentEnd]) -> list[int | None]:
        def clusters_in(response: verifier_pb2.ClusterResponse) -> list[int | None]:
            check_length(response.clusters, "clusters", len(ends), "segments")
            return [
                None if cluster == UNKNOWN_CLUSTER else cluster for cluster in response.clusters
            ]

        return await self._call(
            "Cluster", message_of(verifier_pb2.ClusterRequest, group, ends=ends), clusters_in
        )


def _without_stop(segment: Segment) -> Segment:
    """Return the segment as services of every version read it; they need not know that a stop sequence ended it."""
    return replace(segment, end=SegmentEnd.LENGTH) if segment.end is SegmentEnd.STOP else segment


def _generated(response: types_pb2.GenerateResponse) -> GeneratedSegment | OpenText:
    if response.HasField("open_text"):
        return read(OpenText, response.open_text, "open_text")
    return read(GeneratedSegment, response)


def _prompt(response: types_pb2.EncodeResponse) -> Piece:
    piece = read(Piece, response.prompt, "prompt")
    if isinstance(piece, Segment):
        raise invalid("prompt.writer", f"must be the user, not the {piece.writer}")
    return piece


def _check_size(params: GenerationParams, written: Sequence[GeneratedSegment]) -> None:
    """Check the size of an answer. Raises: InternalError when it is more than the replica was asked for."""
    num_tokens = sum(len(generated.segment.token_ids) for generated in written)
    if 0 < params.max_segments < len(written):
        raise InternalError(
            f"malformed answer: {len(written)} segments, {params.max_segments} were asked for"
        )
    if num_tokens > params.max_tokens:
        raise InternalError(
            f"malformed answer: {num_tokens} tokens, {params.max_tokens} were asked for"
        )


def _rest(params: GenerationParams, kept: Sequence[Segment]) -> GenerationParams | None:
    """Return the parameters for the rest of a call after the segments `kept`; None when it is complete."""
    if not kept:
        return params
    num_tokens = sum(len(segment.token_ids) for segment in kept)
    if params.is_complete(len(kept), num_tokens, kept[-1].end):
        return None
    max_segments = max(params.max_segments - len(kept), 0)
    max_tokens, min_tokens = params.max_tokens - num_tokens, max(params.min_tokens - num_tokens, 0)
    return replace(params, max_tokens=max_tokens, min_tokens=min_tokens, max_segments=max_segments)
