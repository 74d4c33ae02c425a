"""gRPC clients that implement the protocols of `semspec.decoding.protocols`, with one long-lived channel per client.

Cancelling a call, or closing the generator of `generate`, cancels the RPC, which stops the model. Construct a client
within the running event loop, and close it with `aclose`.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import grpc
from grpc import aio
from opentelemetry.trace import Span

from semspec.clustering.equivalence import Alternatives
from semspec.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    Mismatch,
    SemspecError,
    Unavailable,
    from_grpc_status,
)
from semspec.rpc.calls import AUTHORIZATION, PARAMETER, call_metadata, client_span, decoded_response
from semspec.rpc.channel import DEFAULT_OPTIONS, ClientOptions, open_channel
from semspec.rpc.codec import generation, handshake, scoring
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
    target_pb2_grpc,
    types_pb2,
    verifier_pb2,
    verifier_pb2_grpc,
)

Q = TypeVar("Q")
R = TypeVar("R")


class _Remote:
    """A channel, and metadata, deadline and error mapping of its calls."""

    def __init__(self, address: str, options: ClientOptions) -> None:
        self._options = options
        self._authorization = ((AUTHORIZATION, f"Bearer {options.token}"),) if options.token else ()
        self._channel = open_channel(address, options)

    @property
    def channel(self) -> aio.Channel:
        """The channel of the calls, also used for health checks."""
        return self._channel

    async def aclose(self) -> None:
        """Cancel running calls and disconnect. Later calls raise Unavailable."""
        await self._channel.close()

    def _metadata(self, opened: Span) -> tuple[tuple[str, str], ...]:
        return self._authorization + call_metadata(opened)

    async def _call(self, method: aio.UnaryUnaryMultiCallable[Q, R], request: Q) -> R:
        with client_span(method, request) as opened, _rpc_errors():
            response = await method(request, timeout=self._options.call_timeout_s, metadata=self._metadata(opened))
            return decoded_response(response)


class RemoteDrafter(_Remote):
    """A `Drafter` served by `semspec.v1.Draft`."""

    _max_segments_at_once = 8
    """Requests of no more segments get them in one response, which costs less than a stream: a strategy uses the
    segments of one call to the draft together."""

    def __init__(self, address: str, options: ClientOptions = DEFAULT_OPTIONS) -> None:
        super().__init__(address, options)
        self._stub: draft_pb2_grpc.DraftAsyncStub | target_pb2_grpc.TargetAsyncStub
        self._stub = draft_pb2_grpc.DraftStub(self._channel)

    async def info(self) -> ModelInfo:
        """See `Drafter.info`."""
        response = await self._call(self._stub.Info, types_pb2.ModelInfoRequest())
        with _checked_response():
            return handshake.model_info_from_wire(response)

    async def encode(self, prompt: Prompt) -> Piece:
        """See `Drafter.encode`."""
        with _encodable_request():
            request = generation.encode_request_to_wire(prompt)
        response = await self._call(self._stub.Encode, request)
        with _checked_response():
            return generation.encode_response_from_wire(response)

    async def generate(self, context: Context, params: GenerationParams) -> AsyncGenerator[GeneratedSegment, None]:
        """See `Drafter.generate`. Also raises DeadlineExceeded when no segment arrives within `idle_timeout_s`."""
        with _encodable_request():
            request = generation.write_request_to_wire(context, params)
        if 0 < params.max_segments <= self._max_segments_at_once:
            reply = await self._call(self._stub.WriteAll, request)
            with _checked_response():
                segments = [generation.written_from_wire(segment) for segment in reply.segments]
            _check_size(params, len(segments), sum(len(one.segment.token_ids) for one in segments))
            for segment in segments:
                yield segment
            return
        with client_span(self._stub.Write, request) as opened:
            with _rpc_errors():
                call = self._stub.Write(request, metadata=self._metadata(opened))
            try:
                responses, num_segments, num_tokens = aiter(call), 0, 0
                while (response := await self._next(responses)) is not None:
                    with _checked_response():
                        generated = generation.written_from_wire(response)
                    num_segments, num_tokens = num_segments + 1, num_tokens + len(generated.segment.token_ids)
                    _check_size(params, num_segments, num_tokens)
                    yield generated
            finally:
                call.cancel()

    async def propose(
        self, context: Context, open_ids: Sequence[int], params: GenerationParams, num_tokens: int
    ) -> Proposal:
        """See `Drafter.propose`."""
        with _encodable_request():
            request = generation.propose_request_to_wire(context, open_ids, params, num_tokens)
        response = await self._call(self._stub.Propose, request)
        with _checked_response():
            return generation.proposal_from_wire(response)

    async def project(self, parts: AsyncIterator[types_pb2.ProjectionPart]) -> None:
        """Have the engine keep the projection that `RemoteVerifier.projection` yields. See `Engine.project`."""
        with client_span(self._stub.Project, None) as opened, _rpc_errors():
            await self._stub.Project(parts, timeout=self._options.call_timeout_s, metadata=self._metadata(opened))

    async def _next(self, responses: AsyncIterator[R]) -> R | None:
        timeout_s = self._options.idle_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                with _rpc_errors():
                    response = await anext(responses, None)
                    return None if response is None else decoded_response(response)
        except TimeoutError:
            raise DeadlineExceeded(f"no segment within {timeout_s:g} s") from None


class RemoteTarget(RemoteDrafter):
    """A `Target` served by `semspec.v1.Target`."""

    _max_segments_at_once = 1
    """What the target writes goes to the user segment by segment."""

    def __init__(self, address: str, options: ClientOptions = DEFAULT_OPTIONS) -> None:
        super().__init__(address, options)
        self._stub = self._target = target_pb2_grpc.TargetStub(self._channel)

    async def tokenize(self, text: str) -> list[Token]:
        """See `Target.tokenize`."""
        with _encodable_request():
            request = generation.tokenize_request_to_wire(text)
        response = await self._call(self._target.Tokenize, request)
        with _checked_response():
            return generation.tokenize_response_from_wire(response)

    async def score(
        self, context: Context, segments: Sequence[Segment], session: str = "", projection: str = ""
    ) -> list[SegmentScore]:
        """See `Target.score`."""
        with _encodable_request():
            request = scoring.read_request_to_wire(context, segments, session, projection)
        response = await self._call(self._target.Read, request)
        with _checked_response():
            return _one_each(scoring.read_response_from_wire(response), segments)

    async def verify(
        self, context: Context, open_ids: Sequence[int], proposal: Proposal, params: GenerationParams
    ) -> VerifiedTokens:
        """See `Target.verify`."""
        with _encodable_request():
            request = scoring.verify_request_to_wire(context, open_ids, proposal, params)
        response = await self._call(self._target.Verify, request)
        with _checked_response():
            return scoring.verify_response_from_wire(response, len(proposal.token_ids))

    async def score_choices(
        self, context: Context, question: str, prefill: str, options: Sequence[str], session: str = ""
    ) -> ChoiceScores:
        """See `Target.score_choices`."""
        with _encodable_request():
            request = scoring.ask_request_to_wire(context, question, prefill, options, session)
        response = await self._call(self._target.Ask, request)
        with _checked_response():
            return scoring.ask_response_from_wire(response, len(options))


class RemoteVerifier(_Remote):
    """A `Verifier` served by `semspec.v1.Verifier`."""

    def __init__(self, address: str, options: ClientOptions = DEFAULT_OPTIONS) -> None:
        super().__init__(address, options)
        self._stub = verifier_pb2_grpc.VerifierStub(self._channel)

    async def info(self) -> VerifierInfo:
        """See `Verifier.info`."""
        response = await self._call(self._stub.Info, verifier_pb2.VerifierInfoRequest())
        with _checked_response():
            return handshake.verifier_info_from_wire(response)

    async def judge(
        self, draft_states: Sequence[States], scores: Sequence[SegmentScore], probes: str = ""
    ) -> list[Judgement]:
        """See `Verifier.judge`."""
        with _encodable_request():
            request = scoring.judge_request_to_wire(draft_states, scores, probes)
        response = await self._call(self._stub.Judge, request)
        with _checked_response():
            return _one_each(scoring.judge_response_from_wire(response), draft_states)

    async def cluster(self, group: Alternatives, ends: Sequence[SegmentEnd]) -> list[int | None]:
        """See `Clusterer.cluster`."""
        with _encodable_request():
            request = scoring.cluster_request_to_wire(group, ends)
        response = await self._call(self._stub.Cluster, request)
        with _checked_response():
            return _one_each(scoring.cluster_response_from_wire(response), ends)

    async def projection(self, digest: str) -> AsyncGenerator[types_pb2.ProjectionPart, None]:
        """The parts of a projection, for `RemoteDrafter.project`. Raises: InvalidRequest when there is none."""
        request = verifier_pb2.ProjectionRequest(digest=digest)
        with client_span(self._stub.Projection, request) as opened, _rpc_errors():
            call = self._stub.Projection(request, timeout=self._options.call_timeout_s, metadata=self._metadata(opened))
            try:
                async for part in call:
                    yield decoded_response(part)
            finally:
                call.cancel()


def from_rpc_error(error: aio.AioRpcError) -> SemspecError:
    """The error a service raised, or the equivalent of a transport failure."""
    details, trailer = error.details() or error.code().name, error.trailing_metadata() or ()
    if error.code() is grpc.StatusCode.CANCELLED:
        return Unavailable(f"the service ended the call: {details}")
    if error.code() is grpc.StatusCode.UNAUTHENTICATED:  # the operator's mistake, not the end user's
        return Unavailable(f"the service refuses this caller: {details}")
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return Mismatch(f"the service has an older version of the gRPC contract ({details}); upgrade it")
    if error.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.ABORTED):  # no service answers so
        return InternalError(f"{error.code().name} is not a status of the gRPC contract: {details}")
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
        return InvalidRequest(f"too large for the link: {details}; raise max_message_bytes on both sides")
    parameter = next((str(value) for key, value in trailer if key == PARAMETER), None)
    return from_grpc_status(error.code().name, details, parameter)


@contextmanager
def _rpc_errors() -> Iterator[None]:
    """Map gRPC errors to `SemspecError`."""
    try:
        yield
    except aio.AioRpcError as error:
        raise from_rpc_error(error) from error
    except aio.UsageError as error:
        raise Unavailable(f"this client is closed: {error}") from error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise Unavailable(
            "this client was closed during the call"
        ) from None  # gRPC cancels its calls, not the tasks that await them


@contextmanager
def _encodable_request() -> Iterator[None]:
    """Raise InvalidRequest for values protobuf cannot encode, such as a negative count or a lone surrogate."""
    try:
        yield
    except ValueError as error:
        raise InvalidRequest(f"cannot be sent: {error}") from error


@contextmanager
def _checked_response() -> Iterator[None]:
    """Raise InternalError for a malformed response: it is the service's defect, not the caller's."""
    try:
        yield
    except InvalidRequest as error:
        raise InternalError(f"malformed answer: {error.message}") from error


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
