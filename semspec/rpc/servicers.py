"""The three gRPC servicers: decode the request, call the backend, encode the response.

Servicers raise; the interceptor sets the status codes.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from grpc import aio

from semspec.clustering.equivalence import Clusterer
from semspec.decoding.protocols import Verifier
from semspec.engine.protocol import CountsSteps, Engine, StepCounter
from semspec.errors import Unavailable
from semspec.rpc.calls import Context
from semspec.rpc.codec import generation, handshake, scoring
from semspec.rpc.contexts import LastContexts
from semspec.rpc.stalls import CallCounter
from semspec.v1 import (
    draft_pb2_grpc,
    target_pb2,
    target_pb2_grpc,
    types_pb2,
    verifier_pb2,
    verifier_pb2_grpc,
)

DRAFT = "semspec.v1.Draft"
TARGET = "semspec.v1.Target"
VERIFIER = "semspec.v1.Verifier"

B = TypeVar("B")


class ServedVerifier(Verifier, Clusterer, Protocol):
    """What the verifier service serves."""


class Backend(Generic[B]):
    """Holder of the object a service serves; servicers may call `get` before it is loaded."""

    def __init__(self) -> None:
        self._loaded: B | None = None
        self.calls = CallCounter()
        """The calls of a backend that counts no steps itself."""

    def provide(self, loaded: B) -> None:
        """Set the object that `get` returns."""
        self._loaded = loaded

    def get(self) -> B:
        """The loaded object. Raises: Unavailable while it is loading."""
        if self._loaded is None:
            raise Unavailable("the model is still loading")
        return self._loaded

    @property
    def steps(self) -> StepCounter:
        """What shows that the loaded object hangs."""
        own = self._loaded.steps if isinstance(self._loaded, CountsSteps) else None
        return self.calls if own is None else own


@dataclass(frozen=True, slots=True)
class Service(Generic[B]):
    """One gRPC service, and how to load and close its backend."""

    name: str
    """Fully qualified name, as used in health checks: `semspec.v1.Draft`."""
    load: Callable[[], B]
    """Blocking; runs in a worker thread while health checks are answered. May raise any `SemspecError`."""
    register: Callable[[Backend[B], aio.Server], None]
    """Adds the servicer to a server."""
    close: Callable[[B], Awaitable[None]] | None = None
    """Frees the backend after the last call has ended."""
    reload: Callable[[B], Awaitable[None]] | None = None
    """Has the loaded backend read its configuration again, on SIGHUP."""


class WritingServicer:
    """The methods that draft and target share: `Info`, `Encode`, `Write` and `WriteAll`."""

    def __init__(self, engine: Backend[Engine]) -> None:
        self._engine = engine
        self._contexts = LastContexts()

    async def Info(self, request: types_pb2.ModelInfoRequest, context: Context) -> types_pb2.ModelInfo:
        """The served model."""
        return handshake.model_info_to_wire(await self._engine.get().info())

    async def Encode(self, request: types_pb2.EncodeRequest, context: Context) -> types_pb2.EncodeResponse:
        """Render and tokenize a prompt."""
        prompt = generation.encode_request_from_wire(request)
        return generation.encode_response_to_wire(await self._engine.get().encode(prompt))

    async def Write(
        self, request: types_pb2.WriteRequest, context: Context
    ) -> AsyncGenerator[types_pb2.WriteResponse, None]:
        """Stream each segment when it is complete; closing this generator closes the engine's."""
        prefix, params = generation.write_request_from_wire(request, self._contexts)
        async with aclosing(self._engine.get().generate(prefix, params)) as segments:
            async for generated in segments:
                yield generation.written_to_wire(generated)

    async def WriteAll(self, request: types_pb2.WriteRequest, context: Context) -> types_pb2.WriteAllResponse:
        """All segments, once the last is finished."""
        response = types_pb2.WriteAllResponse()
        async with aclosing(self.Write(request, context)) as segments:
            async for segment in segments:
                response.segments.append(segment)
                if len(response.segments) == request.max_segments:
                    break
        return response


class DraftServicer(WritingServicer, draft_pb2_grpc.DraftServicer):
    """`semspec.v1.Draft` over an engine."""

    async def Propose(self, request: types_pb2.ProposeRequest, context: Context) -> types_pb2.Proposal:
        """Tokens with their distributions, for a target to verify."""
        prefix, open_ids, params, num_tokens = generation.propose_request_from_wire(request, self._contexts)
        return generation.proposal_to_wire(await self._engine.get().propose(prefix, open_ids, params, num_tokens))


class TargetServicer(WritingServicer, target_pb2_grpc.TargetServicer):
    """`semspec.v1.Target` over an engine."""

    async def Tokenize(self, request: target_pb2.TokenizeRequest, context: Context) -> target_pb2.TokenizeResponse:
        """The tokens of a text."""
        text = generation.tokenize_request_from_wire(request)
        return generation.tokenize_response_to_wire(await self._engine.get().tokenize(text))

    async def Read(self, request: target_pb2.ReadRequest, context: Context) -> target_pb2.ReadResponse:
        """Score segments that follow a context, in one forward pass."""
        asked = scoring.read_request_from_wire(request, self._contexts)
        return scoring.read_response_to_wire(await self._engine.get().score(*asked))

    async def Verify(self, request: target_pb2.VerifyRequest, context: Context) -> target_pb2.VerifyResponse:
        """Exact speculative sampling of proposed tokens."""
        prefix, open_ids, proposal, params = scoring.verify_request_from_wire(request, self._contexts)
        return scoring.verify_response_to_wire(
            await self._engine.get().verify_tokens(prefix, open_ids, proposal, params)
        )

    async def Ask(self, request: target_pb2.AskRequest, context: Context) -> target_pb2.AskResponse:
        """The probability of each one-token answer to a question about the context."""
        prefix, question, prefill, options, session = scoring.ask_request_from_wire(request, self._contexts)
        choices = await self._engine.get().score_choices(prefix, question, prefill, options, session)
        return scoring.ask_response_to_wire(choices)


class VerifierServicer(verifier_pb2_grpc.VerifierServicer):
    """`semspec.v1.Verifier` over pairs of probes."""

    def __init__(self, verifier: Backend[ServedVerifier]) -> None:
        self._verifier = verifier

    async def Info(self, request: verifier_pb2.VerifierInfoRequest, context: Context) -> verifier_pb2.VerifierInfo:
        """The models and states the probes were trained on."""
        return handshake.verifier_info_to_wire(await self._verifier.get().info())

    async def Judge(self, request: verifier_pb2.JudgeRequest, context: Context) -> verifier_pb2.JudgeResponse:
        """The semantic probability of each segment under both models."""
        draft_states, scores, probes = scoring.judge_request_from_wire(request)
        with self._verifier.calls.counted():
            judgements = await self._verifier.get().judge(draft_states, scores, probes)
        return scoring.judge_response_to_wire(judgements)

    async def Cluster(self, request: verifier_pb2.ClusterRequest, context: Context) -> verifier_pb2.ClusterResponse:
        """Which segments of one context mean the same."""
        group, ends = scoring.cluster_request_from_wire(request)
        return scoring.cluster_response_to_wire(await self._verifier.get().cluster(group, ends))


def draft_service(load: Callable[[], Engine]) -> Service[Engine]:
    """`semspec.v1.Draft`, serving the engine that `load` returns."""
    return Service(DRAFT, load, _register_draft, _close_engine, _reload_engine)


def target_service(load: Callable[[], Engine]) -> Service[Engine]:
    """`semspec.v1.Target`, serving the engine that `load` returns."""
    return Service(TARGET, load, _register_target, _close_engine, _reload_engine)


def verifier_service(load: Callable[[], ServedVerifier]) -> Service[ServedVerifier]:
    """`semspec.v1.Verifier`, serving the probes that `load` returns."""
    return Service(VERIFIER, load, _register_verifier)


def _register_draft(engine: Backend[Engine], server: aio.Server) -> None:
    draft_pb2_grpc.add_DraftServicer_to_server(DraftServicer(engine), server)


def _register_target(engine: Backend[Engine], server: aio.Server) -> None:
    target_pb2_grpc.add_TargetServicer_to_server(TargetServicer(engine), server)


def _register_verifier(verifier: Backend[ServedVerifier], server: aio.Server) -> None:
    verifier_pb2_grpc.add_VerifierServicer_to_server(VerifierServicer(verifier), server)


async def _close_engine(engine: Engine) -> None:
    await engine.aclose()


async def _reload_engine(engine: Engine) -> None:
    await engine.read_probes()
