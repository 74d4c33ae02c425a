"""A fake model behind real servers on real sockets."""

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

from google.protobuf.message import Message as Wire

from semspec.clustering.equivalence import Alternatives
from semspec.rpc.codec.messages import encode_request, message_of
from semspec.rpc.contexts import put_context
from semspec.rpc.server import ServiceServer
from semspec.rpc.servicers import Servicer
from semspec.settings import ServiceSettings
from semspec.types import (
    SURPRISAL_FEATURES,
    Context,
    Distribution,
    GenerationParams,
    Message,
    ModelInfo,
    Piece,
    Proposal,
    SamplingParams,
    Segment,
    SegmentEnd,
    SegmentScore,
    States,
    TokenLogprob,
    Writer,
)
from semspec.v2 import target_pb2, types_pb2, verifier_pb2
from tests.helpers.fakes import TOKENIZER, FakeModel

STATES = States(data=bytes(range(24)), shape=(3, 2), model="weights-1")
SURPRISAL = tuple(float(i) / 4 for i in range(len(SURPRISAL_FEATURES)))
CONTEXT = Context((Piece("How many?", (1, 2, 3), "tokens-1"),))
SEGMENT = Segment("Two.\n\n", (4, 5), "tokens-1", Writer.DRAFT, SegmentEnd.BOUNDARY)
ORDER = GenerationParams(SamplingParams(seed=2**64 - 1), max_segments=3, want_states=True)
HALVES = Distribution(struct.pack("<2I", 5, 2**32 - 1), struct.pack("<2f", 0.5, 0.5))
PROPOSAL = Proposal((5, 104), (HALVES, HALVES), TOKENIZER, 0.5)
GROUP = Alternatives("", "How many?", "Tom has 20.\n\n", ("Tom has 25.", "Tom now has 25."))

M = TypeVar("M", bound=Wire)


def request_about(kind: type[M], context: Context, *values: object, **others: object) -> M:
    """A request of this kind with its whole context."""
    message = message_of(kind, *values, **others)
    put_context(message, context)
    return message


def sound_requests(context: Context, params: GenerationParams = ORDER) -> dict[str, Any]:
    """A request to each method, by its name, that a service of fakes answers."""
    score = SegmentScore(STATES, SURPRISAL, 5, 0.0)
    write = request_about(types_pb2.GenerateRequest, context, params)
    return {
        "Info": types_pb2.ModelInfoRequest(),
        "Encode": encode_request([Message("user", "How many?")]),
        "Generate": write,
        "Propose": request_about(
            types_pb2.ProposeRequest, context, params, open_ids=(8, 9), num_tokens=4
        ),
        "Tokenize": target_pb2.TokenizeRequest(text="Hello?"),
        "Score": request_about(target_pb2.ScoreRequest, context, segments=[SEGMENT], session="s"),
        "VerifyTokens": request_about(
            target_pb2.VerifyTokensRequest, context, params, proposal=PROPOSAL, open_ids=(1,)
        ),
        "Judge": message_of(verifier_pb2.JudgeRequest, draft_states=[STATES], scores=[score]),
        "Cluster": message_of(
            verifier_pb2.ClusterRequest, GROUP, ends=[SegmentEnd.BOUNDARY, SegmentEnd.EOS]
        ),
    }


class FakeEngine(FakeModel):
    """Writes segments without end, each in some steps, or raises `error` for every call but `info`."""

    def __init__(
        self, error: Exception | None = None, step_s: float = 0.0, num_steps_per_segment: int = 1
    ) -> None:
        super().__init__(Writer.TARGET, num_segments=10**9, delay_s=step_s)
        self.model_info = replace(
            self.model_info, model="fake", fingerprint="weights-1", build="test"
        )
        self.error, self.num_steps_per_segment, self.num_steps = error, num_steps_per_segment, 0
        self.freed = False

    async def info(self) -> ModelInfo:
        return self.model_info

    async def aclose(self) -> None:
        self.freed = True

    async def _before_segment(self, context: Context) -> None:
        for _ in range(self.num_steps_per_segment):
            self.num_steps += 1
            await self._work()

    def _logprobs(
        self, segment: Segment, params: GenerationParams
    ) -> tuple[TokenLogprob, ...] | None:
        if params.num_logprobs is None:
            return None
        return tuple(TokenLogprob(token, bytes([token]), -0.1) for token in segment.token_ids)

    def _fail(self) -> None:
        if self.error:
            raise self.error
        if self.freed:
            raise RuntimeError("used after it was freed")


def settings(**changes: object) -> ServiceSettings:
    """A service on a free port that drains without waiting."""
    return ServiceSettings.model_validate({"settle_s": 0, "grace_s": 0, **changes})


@asynccontextmanager
async def serving(
    servicer: Servicer[Any], options: ServiceSettings | None = None
) -> AsyncIterator[ServiceServer]:
    """A started and loaded server, stopped in the end."""
    server = ServiceServer(servicer, options or settings())
    await server.start()
    await server.load()
    try:
        yield server
    finally:
        await server.stop()
