"""The three gRPC servicers: decode the request, call the backend, encode the response.

Servicers raise; `semspec.rpc.calls` sets the status codes.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from time import monotonic
from typing import ClassVar, Generic, Protocol, TypeVar

from google.protobuf.descriptor import ServiceDescriptor

from semspec.clustering.equivalence import Alternatives, Clusterer
from semspec.errors import Unavailable
from semspec.protocols import Engine, StepCounter, Verifier
from semspec.rpc.codec.messages import message_of, read, read_each, read_prompt
from semspec.rpc.codec.values import (
    COUNT,
    END_OF,
    UNKNOWN_CLUSTER,
    check_filled,
    check_length,
    check_range,
    known,
)
from semspec.rpc.contexts import LastContexts, read_context
from semspec.types import GenerationParams, OpenText, Proposal, Segment, SegmentScore, States
from semspec.v2 import draft_pb2, target_pb2, types_pb2, verifier_pb2

B = TypeVar("B")
LOADING = "the model is still loading, or being tested"
NUM_POLLS = 10
"""Polls of `watch_steps` within its limit that must all see the same counter; time in suspension does not count."""


logger = logging.getLogger(__name__)


class ServedVerifier(Verifier, Clusterer, Protocol):
    """The backend of the verifier service."""


async def watch_steps(
    steps: StepCounter,
    stall_s: float,
    report: Callable[[bool], Awaitable[None]],
    is_stalled: bool = False,
) -> None:
    """Call `report` with each change of whether a backend hangs, as with a stuck GPU kernel, until cancelled.

    It hangs when it is busy and makes no step for `stall_s`, and then until its next step. Calls that wait in a queue
    do not count as long as any call makes a step. `is_stalled`: the last report.
    """
    num_steps, num_polls = steps.num_steps, 0
    while True:
        await asyncio.sleep(stall_s / NUM_POLLS)
        before, num_steps = num_steps, steps.num_steps
        stands_still = num_steps == before and (steps.is_busy or is_stalled)
        num_polls = num_polls + 1 if stands_still else 0
        if is_stalled != (num_polls >= NUM_POLLS):
            is_stalled = not is_stalled
            await report(is_stalled)


class Servicer(Generic[B]):
    """A gRPC service over what `load` returns, once `test` has passed."""

    descriptor: ClassVar[ServiceDescriptor]
    """Descriptor of the service; this class has its methods by name."""
    name: ClassVar[str]
    """Fully qualified, as used in health checks: `semspec.v2.Draft`."""

    def __init__(
        self, load: Callable[[], B], test: Callable[[B], Awaitable[str]] | None = None
    ) -> None:
        """`test` returns its result in one line, which may be empty, and raises Mismatch."""
        self._load, self._test = load, test
        self._backend: B | None = None
        self._load_s = 0.0
        self.refusal = LOADING
        """Why `Info` is refused and health checks report NOT_SERVING; empty while the service serves."""

    async def load(self) -> B:
        """Load and test the backend, which gets no calls before. Raises: what `load` and `test` raise."""
        begin = monotonic()
        backend = await asyncio.to_thread(self._load)
        if self._test and (result := await self._test(backend)):
            logger.info("%s: %s", self.name, result)
        self._load_s = monotonic() - begin
        self._backend = backend
        return backend

    @property
    def backend(self) -> B:
        """The loaded and tested backend. Raises: Unavailable before."""
        if self._backend is None:
            raise Unavailable(LOADING)
        return self._backend

    def require_serving(self) -> B:
        """Return the backend. Raises: Unavailable while health checks report NOT_SERVING."""
        if self.refusal:
            raise Unavailable(self.refusal)
        return self.backend

    async def aclose(self) -> None:
        """Free the backend after the last call has ended."""


class ModelServicer(Servicer[Engine]):
    """The methods that draft and target share: `Info`, `Encode` and `Generate`."""

    def __init__(
        self, load: Callable[[], Engine], test: Callable[[Engine], Awaitable[str]] | None = None
    ) -> None:
        super().__init__(load, test)
        self._contexts = LastContexts()

    async def aclose(self) -> None:
        await self.backend.aclose()

    async def Info(self, request: types_pb2.ModelInfoRequest) -> types_pb2.ModelInfo:
        """Describe the served model. Raises: Unavailable while health checks report NOT_SERVING."""
        info = await self.require_serving().info()
        return message_of(types_pb2.ModelInfo, replace(info, load_s=self._load_s))

    async def Encode(self, request: types_pb2.EncodeRequest) -> types_pb2.EncodeResponse:
        """Render and tokenize a prompt."""
        prompt = await self.backend.encode(read_prompt(request))
        return message_of(types_pb2.EncodeResponse, prompt=prompt)

    async def Generate(
        self, request: types_pb2.GenerateRequest
    ) -> AsyncGenerator[types_pb2.GenerateResponse, None]:
        """Stream each segment when it is complete, and its text before that if the request asks for it; closing this
        generator closes the engine's."""
        params, prefix = read(GenerationParams, request), read_context(request, self._contexts)
        write = self.backend.stream if request.streams_text else self.backend.generate
        async with aclosing(write(prefix, params)) as written:
            async for item in written:
                if isinstance(item, OpenText):
                    yield message_of(types_pb2.GenerateResponse, open_text=item)
                else:
                    yield message_of(types_pb2.GenerateResponse, item)


class DraftServicer(ModelServicer):
    """`semspec.v2.Draft` over an engine."""

    descriptor = draft_pb2.DESCRIPTOR.services_by_name["Draft"]
    name = descriptor.full_name

    async def Propose(self, request: types_pb2.ProposeRequest) -> types_pb2.ProposeResponse:
        """Propose tokens with their distributions, for a target to verify."""
        check_range(request.num_tokens, "num_tokens", *COUNT)
        params, prefix = read(GenerationParams, request), read_context(request, self._contexts)
        proposal = await self.backend.propose(
            prefix, tuple(request.open_ids), params, request.num_tokens
        )
        return message_of(types_pb2.ProposeResponse, proposal=proposal)


class TargetServicer(ModelServicer):
    """`semspec.v2.Target` over an engine."""

    descriptor = target_pb2.DESCRIPTOR.services_by_name["Target"]
    name = descriptor.full_name

    async def Tokenize(self, request: target_pb2.TokenizeRequest) -> target_pb2.TokenizeResponse:
        """Tokenize a text, which may be empty."""
        return message_of(
            target_pb2.TokenizeResponse, tokens=await self.backend.tokenize(request.text)
        )

    async def Score(self, request: target_pb2.ScoreRequest) -> target_pb2.ScoreResponse:
        """Score segments that follow a context, in one forward pass."""
        check_filled(request.segments, "segments")
        segments = read_each(Segment, request.segments, "segments")
        prefix = read_context(request, self._contexts)
        scores = await self.backend.score(prefix, segments, request.session, request.projection)
        return message_of(target_pb2.ScoreResponse, scores=scores)

    async def VerifyTokens(
        self, request: target_pb2.VerifyTokensRequest
    ) -> target_pb2.VerifyTokensResponse:
        """Verify proposed tokens by exact speculative sampling."""
        params, proposal = (
            read(GenerationParams, request),
            read(Proposal, request.proposal, "proposal"),
        )
        prefix, open_ids = read_context(request, self._contexts), tuple(request.open_ids)
        verified = await self.backend.verify_tokens(prefix, open_ids, proposal, params)
        return message_of(target_pb2.VerifyTokensResponse, verified)


class VerifierServicer(Servicer[ServedVerifier]):
    """`semspec.v2.Verifier` over pairs of probes."""

    descriptor = verifier_pb2.DESCRIPTOR.services_by_name["Verifier"]
    name = descriptor.full_name

    async def Info(self, request: verifier_pb2.VerifierInfoRequest) -> verifier_pb2.VerifierInfo:
        """Describe the models and states the probes were trained on. Raises: as `ModelServicer.Info`."""
        return message_of(verifier_pb2.VerifierInfo, await self.require_serving().info())

    async def Judge(self, request: verifier_pb2.JudgeRequest) -> verifier_pb2.JudgeResponse:
        """Compute the semantic probability of each segment under both models."""
        check_filled(request.draft_states, "draft_states")
        check_length(request.scores, "scores", len(request.draft_states), "draft_states")
        draft_states = read_each(States, request.draft_states, "draft_states")
        scores = read_each(SegmentScore, request.scores, "scores")
        judgements = await self.backend.judge(draft_states, scores, request.probes)
        return message_of(verifier_pb2.JudgeResponse, judgements=judgements)

    async def Cluster(self, request: verifier_pb2.ClusterRequest) -> verifier_pb2.ClusterResponse:
        """Cluster the segments of one context by meaning."""
        check_filled(request.segments, "segments")
        check_length(request.ends, "ends", len(request.segments), "segments")
        ends = [known(END_OF, end, f"ends[{index}]") for index, end in enumerate(request.ends)]
        group = Alternatives("", request.question, request.reasoning, tuple(request.segments))
        clusters = await self.backend.cluster(group, ends)
        numbers = [UNKNOWN_CLUSTER if cluster is None else cluster for cluster in clusters]
        return verifier_pb2.ClusterResponse(clusters=numbers)
