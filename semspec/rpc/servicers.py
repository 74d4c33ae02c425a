"""The three gRPC servicers: decode the request, call the backend, encode the response.

Servicers raise; the interceptor sets the status codes.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from grpc import aio

from semspec.clustering.equivalence import Alternatives, Clusterer
from semspec.decoding.protocols import Verifier
from semspec.engine.protocol import Engine, StepCounter
from semspec.errors import Unavailable
from semspec.rpc.calls import Context
from semspec.rpc.codec.messages import message_of, read, read_each, read_prompt
from semspec.rpc.codec.values import (
    COUNT,
    END_OF,
    UNKNOWN_CLUSTER,
    check_filled,
    check_length,
    check_range,
    invalid,
    known,
)
from semspec.rpc.contexts import LastContexts, read_context
from semspec.types import GenerationParams, Proposal, Segment, SegmentScore, States
from semspec.v1 import draft_pb2_grpc, target_pb2, target_pb2_grpc, types_pb2, verifier_pb2, verifier_pb2_grpc

B = TypeVar("B")
NUM_LOOKS = 10
"""Looks of `watch_steps` within its limit, which all find the same counter: time in suspension does not count."""


class ServedVerifier(Verifier, Clusterer, Protocol):
    """What the verifier service serves."""


async def watch_steps(steps: StepCounter, stall_s: float, report: Callable[[bool], Awaitable[None]]) -> None:
    """Call `report` with each change of whether a backend hangs, as with a stuck GPU kernel, until cancelled.

    It hangs after no step for `stall_s` while busy, and then until its next step, busy or not. Calls that wait in a
    queue are no sign of it, as long as any call makes a step.
    """
    num_steps, num_looks, is_stalled = steps.num_steps, 0, False
    while True:
        await asyncio.sleep(stall_s / NUM_LOOKS)
        before, num_steps = num_steps, steps.num_steps
        stands_still = num_steps == before and (steps.is_busy or is_stalled)
        num_looks = num_looks + 1 if stands_still else 0
        if is_stalled != (num_looks >= NUM_LOOKS):
            is_stalled = not is_stalled
            await report(is_stalled)


class Servicer(Generic[B]):
    """A gRPC service over what `load` returns."""

    name: ClassVar[str]
    """Fully qualified, as used in health checks: `semspec.v1.Draft`."""
    add: ClassVar[Callable[[Any, aio.Server], None]]
    """Adds it to a server: generated."""

    def __init__(self, load: Callable[[], B]) -> None:
        self._load = load
        self._loaded: B | None = None

    def load(self) -> B:
        """Load what is served. Blocking; runs in a worker thread while health checks are answered. Raises: what the
        given `load` raises, which may be any `SemspecError`."""
        self._loaded = self._load()
        return self._loaded

    @property
    def backend(self) -> B:
        """What is served. Raises: Unavailable while it is loading."""
        if self._loaded is None:
            raise Unavailable("the model is still loading")
        return self._loaded

    async def check(self) -> str:
        """Test what is loaded. Returns a line of result, or nothing. Raises: Mismatch."""
        return ""

    async def aclose(self) -> None:
        """Free what is served, after the last call has ended."""


class ModelServicer(Servicer[Engine]):
    """The methods that draft and target share: `Info`, `Encode`, `Write` and `WriteAll`."""

    def __init__(self, load: Callable[[], Engine], test: Callable[[Engine], Awaitable[str]] | None = None) -> None:
        super().__init__(load)
        self._contexts, self._test = LastContexts(), test

    async def check(self) -> str:
        return await self._test(self.backend) if self._test else ""

    async def aclose(self) -> None:
        """See `Engine.aclose`."""
        await self.backend.aclose()

    async def Info(self, request: types_pb2.ModelInfoRequest, context: Context) -> types_pb2.ModelInfo:
        """The served model."""
        return message_of(types_pb2.ModelInfo, await self.backend.info())

    async def Encode(self, request: types_pb2.EncodeRequest, context: Context) -> types_pb2.EncodeResponse:
        """Render and tokenize a prompt."""
        prompt = await self.backend.encode(read_prompt(request))
        return message_of(types_pb2.EncodeResponse, prompt=prompt)

    async def Write(
        self, request: types_pb2.WriteRequest, context: Context
    ) -> AsyncGenerator[types_pb2.WriteResponse, None]:
        """Stream each segment when it is complete; closing this generator closes the engine's."""
        params, prefix = read(GenerationParams, request), read_context(request, self._contexts)
        async with aclosing(self.backend.generate(prefix, params)) as segments:
            async for generated in segments:
                yield message_of(types_pb2.WriteResponse, generated)

    async def WriteAll(self, request: types_pb2.WriteRequest, context: Context) -> types_pb2.WriteAllResponse:
        """All segments, once the last is finished."""
        response = types_pb2.WriteAllResponse()
        async with aclosing(self.Write(request, context)) as segments:
            async for segment in segments:
                response.segments.append(segment)
                if len(response.segments) == request.max_segments:
                    break
        return response


class DraftServicer(ModelServicer, draft_pb2_grpc.DraftServicer):
    """`semspec.v1.Draft` over an engine."""

    name = "semspec.v1.Draft"
    add = draft_pb2_grpc.add_DraftServicer_to_server

    async def Propose(self, request: types_pb2.ProposeRequest, context: Context) -> types_pb2.Proposal:
        """Tokens with their distributions, for a target to verify."""
        check_range(request.num_tokens, "num_tokens", *COUNT)
        params, prefix = read(GenerationParams, request), read_context(request, self._contexts)
        open_ids = tuple(request.open_token_ids)
        proposal = await self.backend.propose(prefix, open_ids, params, request.num_tokens)
        return message_of(types_pb2.Proposal, proposal)


class TargetServicer(ModelServicer, target_pb2_grpc.TargetServicer):
    """`semspec.v1.Target` over an engine."""

    name = "semspec.v1.Target"
    add = target_pb2_grpc.add_TargetServicer_to_server

    async def Tokenize(self, request: target_pb2.TokenizeRequest, context: Context) -> target_pb2.TokenizeResponse:
        """The tokens of a text, which may be empty."""
        return message_of(target_pb2.TokenizeResponse, tokens=await self.backend.tokenize(request.text))

    async def Read(self, request: target_pb2.ReadRequest, context: Context) -> target_pb2.ReadResponse:
        """Score segments that follow a context, in one forward pass."""
        check_filled(request.segments, "segments")
        segments = read_each(Segment, request.segments, "segments")
        prefix = read_context(request, self._contexts)
        scores = await self.backend.score(prefix, segments, request.session, request.projection)
        response = message_of(target_pb2.ReadResponse, readings=scores)
        if scores:
            response.duration_ms = scores[0].duration_ms
            if scores[0].num_cached_tokens is not None:
                response.num_cached_tokens = scores[0].num_cached_tokens
        return response

    async def Verify(self, request: target_pb2.VerifyRequest, context: Context) -> target_pb2.VerifyResponse:
        """Exact speculative sampling of proposed tokens."""
        params, proposal = read(GenerationParams, request), read(Proposal, request.proposal, "proposal")
        prefix, open_ids = read_context(request, self._contexts), tuple(request.open_token_ids)
        verified = await self.backend.verify_tokens(prefix, open_ids, proposal, params)
        return message_of(target_pb2.VerifyResponse, verified)

    async def Ask(self, request: target_pb2.AskRequest, context: Context) -> target_pb2.AskResponse:
        """The probability of each one-token answer to a question about the context."""
        if not request.question.strip():
            raise invalid("question", "is empty")
        check_filled(request.options, "options")
        asked = request.question, request.prefill, list(request.options), request.session
        prefix = read_context(request, self._contexts)
        return message_of(target_pb2.AskResponse, await self.backend.score_choices(prefix, *asked))


class VerifierServicer(Servicer[ServedVerifier], verifier_pb2_grpc.VerifierServicer):
    """`semspec.v1.Verifier` over pairs of probes."""

    name = "semspec.v1.Verifier"
    add = verifier_pb2_grpc.add_VerifierServicer_to_server

    async def Info(self, request: verifier_pb2.VerifierInfoRequest, context: Context) -> verifier_pb2.VerifierInfo:
        """The models and states the probes were trained on."""
        return message_of(verifier_pb2.VerifierInfo, await self.backend.info())

    async def Judge(self, request: verifier_pb2.JudgeRequest, context: Context) -> verifier_pb2.JudgeResponse:
        """The semantic probability of each segment under both models."""
        check_filled(request.draft_states, "draft_states")
        check_length(request.readings, "readings", len(request.draft_states), "draft_states")
        draft_states = read_each(States, request.draft_states, "draft_states")
        scores = read_each(SegmentScore, request.readings, "readings")
        judgements = await self.backend.judge(draft_states, scores, request.probes)
        return message_of(verifier_pb2.JudgeResponse, judgements=judgements)

    async def Cluster(self, request: verifier_pb2.ClusterRequest, context: Context) -> verifier_pb2.ClusterResponse:
        """Which segments of one context mean the same."""
        check_filled(request.segments, "segments")
        check_length(request.ends, "ends", len(request.segments), "segments")
        ends = [known(END_OF, end, f"ends[{index}]") for index, end in enumerate(request.ends)]
        group = Alternatives("", request.question, request.reasoning, tuple(request.segments))
        clusters = await self.backend.cluster(group, ends)
        numbers = [UNKNOWN_CLUSTER if one is None else one for one in clusters]
        return verifier_pb2.ClusterResponse(clusters=numbers)
