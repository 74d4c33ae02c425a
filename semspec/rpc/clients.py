"""gRPC clients that implement the protocols of `semspec.decoding.protocols`, with one long-lived channel per client.

Cancelling a call, or closing the generator of `generate`, cancels the RPC, which stops the model. Construct a client
within the running event loop, and close it with `aclose`.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

from semspec.clustering.equivalence import Alternatives
from semspec.errors import InternalError
from semspec.rpc.channel import DEFAULT_OPTIONS, ClientOptions
from semspec.rpc.codec import generation, handshake, scoring
from semspec.rpc.connection import Remote, RemoteModel, checked_response, encodable_request
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
from semspec.v1 import (
    draft_pb2_grpc,
    target_pb2,
    target_pb2_grpc,
    types_pb2,
    verifier_pb2,
    verifier_pb2_grpc,
)

R = TypeVar("R")


class WritingClient(RemoteModel):
    """The calls that draft and target share."""

    _max_segments_at_once: int
    """Requests of no more segments get them in one response, which costs less than a stream."""
    _stub: "draft_pb2_grpc.DraftAsyncStub | target_pb2_grpc.TargetAsyncStub"  # these exist for type checkers alone

    async def info(self) -> ModelInfo:
        """See `Model.info`."""
        response = await self.call(self._stub.Info, types_pb2.ModelInfoRequest())
        with checked_response():
            return handshake.model_info_from_wire(response)

    async def encode(self, prompt: Prompt) -> Piece:
        """See `Model.encode`."""
        with encodable_request():
            request = generation.encode_request_to_wire(prompt)
        response = await self.call(self._stub.Encode, request)
        with checked_response():
            return generation.encode_response_from_wire(response)

    async def generate(self, context: Context, params: GenerationParams) -> AsyncGenerator[GeneratedSegment, None]:
        """See `Model.generate`. Also raises DeadlineExceeded when no segment arrives within `idle_timeout_s`."""

        def request_of(rest: Context, before: bytes) -> types_pb2.WriteRequest:
            return generation.write_request_to_wire(rest, params, before)

        if 0 < params.max_segments <= self._max_segments_at_once:
            reply = await self.call_about(self._stub.WriteAll, params.session, context, request_of)
            with checked_response():
                segments = [generation.written_from_wire(segment) for segment in reply.segments]
            _check_size(params, len(segments), sum(len(one.segment.token_ids) for one in segments))
            for segment in segments:
                yield segment
            return
        num_segments, num_tokens = 0, 0
        async with aclosing(self.stream_about(self._stub.Write, params.session, context, request_of)) as responses:
            async for response in responses:
                with checked_response():
                    generated = generation.written_from_wire(response)
                num_segments, num_tokens = num_segments + 1, num_tokens + len(generated.segment.token_ids)
                _check_size(params, num_segments, num_tokens)
                yield generated


class RemoteDrafter(WritingClient):
    """A `Drafter` served by `semspec.v1.Draft`."""

    _max_segments_at_once = 8
    """A strategy uses the segments of one call to the draft together."""

    def __init__(self, address: str, options: ClientOptions = DEFAULT_OPTIONS) -> None:
        super().__init__(address, options)
        self._stub = self._draft = draft_pb2_grpc.DraftStub(self._channel)

    async def propose(
        self, context: Context, open_ids: Sequence[int], params: GenerationParams, num_tokens: int
    ) -> Proposal:
        """See `Drafter.propose`."""

        def request_of(rest: Context, before: bytes) -> types_pb2.ProposeRequest:
            return generation.propose_request_to_wire(rest, open_ids, params, num_tokens, before)

        response = await self.call_about(self._draft.Propose, params.session, context, request_of)
        with checked_response():
            return generation.proposal_from_wire(response)


class RemoteTarget(WritingClient):
    """A `Target` served by `semspec.v1.Target`."""

    _max_segments_at_once = 1
    """What the target writes goes to the user segment by segment."""

    def __init__(self, address: str, options: ClientOptions = DEFAULT_OPTIONS) -> None:
        super().__init__(address, options)
        self._stub = self._target = target_pb2_grpc.TargetStub(self._channel)

    async def tokenize(self, text: str) -> list[Token]:
        """See `Target.tokenize`."""
        with encodable_request():
            request = generation.tokenize_request_to_wire(text)
        response = await self.call(self._target.Tokenize, request)
        with checked_response():
            return generation.tokenize_response_from_wire(response)

    async def score(
        self, context: Context, segments: Sequence[Segment], session: str = "", projection: str = ""
    ) -> list[SegmentScore]:
        """See `Target.score`."""

        def request_of(rest: Context, before: bytes) -> target_pb2.ReadRequest:
            return scoring.read_request_to_wire(rest, segments, session, projection, before)

        response = await self.call_about(self._target.Read, session, context, request_of)
        with checked_response():
            return _one_each(scoring.read_response_from_wire(response), segments)

    async def verify_tokens(
        self, context: Context, open_ids: Sequence[int], proposal: Proposal, params: GenerationParams
    ) -> VerifiedTokens:
        """See `Target.verify_tokens`."""

        def request_of(rest: Context, before: bytes) -> target_pb2.VerifyRequest:
            return scoring.verify_request_to_wire(rest, open_ids, proposal, params, before)

        response = await self.call_about(self._target.Verify, params.session, context, request_of)
        with checked_response():
            return scoring.verify_response_from_wire(response, len(proposal.token_ids))

    async def score_choices(
        self, context: Context, question: str, prefill: str, options: Sequence[str], session: str = ""
    ) -> ChoiceScores:
        """See `Target.score_choices`."""

        def request_of(rest: Context, before: bytes) -> target_pb2.AskRequest:
            return scoring.ask_request_to_wire(rest, question, prefill, options, session, before)

        response = await self.call_about(self._target.Ask, session, context, request_of)
        with checked_response():
            return scoring.ask_response_from_wire(response, len(options))


class RemoteVerifier(Remote):
    """A `Verifier` served by `semspec.v1.Verifier`."""

    def __init__(self, address: str, options: ClientOptions = DEFAULT_OPTIONS) -> None:
        super().__init__(address, options)
        self._stub = verifier_pb2_grpc.VerifierStub(self._channel)

    async def info(self) -> VerifierInfo:
        """See `Verifier.info`."""
        response = await self.call(self._stub.Info, verifier_pb2.VerifierInfoRequest())
        with checked_response():
            return handshake.verifier_info_from_wire(response)

    async def judge(
        self, draft_states: Sequence[States], scores: Sequence[SegmentScore], probes: str = ""
    ) -> list[Judgement]:
        """See `Verifier.judge`."""
        with encodable_request():
            request = scoring.judge_request_to_wire(draft_states, scores, probes)
        response = await self.call(self._stub.Judge, request)
        with checked_response():
            return _one_each(scoring.judge_response_from_wire(response), draft_states)

    async def cluster(self, group: Alternatives, ends: Sequence[SegmentEnd]) -> list[int | None]:
        """See `Clusterer.cluster`."""
        with encodable_request():
            request = scoring.cluster_request_to_wire(group, ends)
        response = await self.call(self._stub.Cluster, request)
        with checked_response():
            return _one_each(scoring.cluster_response_from_wire(response), ends)


def _check_size(params: GenerationParams, num_segments: int, num_tokens: int) -> None:
    """Raises: InternalError when a service has written more than it was asked for."""
    if 0 < params.max_segments < num_segments:
        raise InternalError(f"malformed answer: {num_segments} segments, {params.max_segments} were asked for")
    if num_tokens > params.max_tokens:
        raise InternalError(f"malformed answer: {num_tokens} tokens, at most {params.max_tokens} were asked for")


def _one_each(items: list[R], segments: Sequence[object]) -> list[R]:
    if len(items) != len(segments):
        raise InternalError(f"malformed answer: {len(items)} items for {len(segments)} segments")
    return items
