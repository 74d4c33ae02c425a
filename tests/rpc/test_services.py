"""The clients against real servers on real sockets: what they answer, what they raise, and when they stop."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest
from grpc import aio

from semspec.clustering.equivalence import Alternatives
from semspec.errors import (
    TABLE,
    Conflict,
    ContextTooLong,
    DeadlineExceeded,
    InternalError,
    InvalidField,
    InvalidRequest,
    InvalidValue,
    Mismatch,
    NotFound,
    SemspecError,
    Unauthenticated,
    Unavailable,
)
from semspec.observability import request_id
from semspec.protocols import Verifier
from semspec.rpc.clients import RemoteDrafter, RemoteTarget, RemoteVerifier
from semspec.rpc.connection import ClientOptions
from semspec.rpc.servicers import TargetServicer
from semspec.types import (
    Context,
    GeneratedSegment,
    GenerationParams,
    Judgement,
    Message,
    ModelInfo,
    Proposal,
    Retrieval,
    SamplingParams,
    Segmentation,
    SegmentEnd,
    SegmentScore,
    TokenIds,
    ToolCall,
    VerifiedTokens,
)
from tests.helpers.fakes import FakeVerifier, collected
from tests.helpers.pools import GENEROUS_S, drafting, targeting, until, verifying
from tests.helpers.rpc import (
    CONTEXT,
    HALVES,
    ORDER,
    PROPOSAL,
    SEGMENT,
    STATES,
    SURPRISAL,
    FakeEngine,
    serving,
    settings,
)

NONCE = "0123456789abcdef"
PARAMS = GenerationParams(
    SamplingParams(0.5, 0.9, 7, 2**63, 0.1),
    Segmentation.SENTENCE,
    5,
    6,
    4,
    session="s",
)
RETRIEVING = GenerationParams(
    PARAMS.sampling, session="s", retrieval=Retrieval(b"state", "context")
)
ASKED = [
    Message("developer", "Be brief."),
    Message("user", "¿Cuántos?"),
    Message("assistant", "", (ToolCall("call-1", "count", "{}"),)),
]
CALLS: list[tuple[str, tuple[Any, ...]]] = [
    ("info", ()),
    ("encode", ("plain",)),
    ("encode", ([*ASKED, Message("tool", "25", tool_call_id="call-1")],)),
    ("encode", (TokenIds((104, 105)),)),
    ("tokenize", ("¿Cuántos?",)),
    ("tokenize", ("",)),
    ("propose", (CONTEXT, (8, 9), RETRIEVING, 3)),
    ("score", (CONTEXT, [SEGMENT, SEGMENT], "s", "a projection")),
    ("verify_tokens", (CONTEXT, (8, 9), PROPOSAL, PARAMS)),
    ("verify_tokens", (CONTEXT, (8, 9), Proposal((), (), "", 0.0), PARAMS)),
]


async def test_engine_gets_what_the_caller_gives_and_the_caller_what_it_answers() -> None:
    given: list[tuple[str, tuple[Any, ...]]] = []

    class Recording(FakeEngine):
        def __getattribute__(self, name: str) -> Any:
            call = super().__getattribute__(name)

            def noted(*arguments: Any) -> Any:
                given.append((name, arguments))
                return call(*arguments)

            return noted if any(name == asked for asked, _ in CALLS) else call

    async with drafting(Recording()) as drafter, targeting(Recording()) as target:
        given.clear()
        for name, arguments in CALLS:
            client = drafter if name == "propose" else target
            assert await getattr(client, name)(*arguments) == await getattr(FakeEngine(), name)(
                *arguments
            )
        for params in (ORDER, replace(ORDER, num_logprobs=0)):
            for writer in (drafter, target):
                written = await collected(writer.generate(CONTEXT, params))
                assert written == await collected(FakeEngine().generate(CONTEXT, params))
    assert [call for call in given if call[0] != "info"] == CALLS[1:]


async def test_remote_verifier_answers_as_the_verifier_does() -> None:
    local = FakeVerifier()
    readings = [SegmentScore(STATES, SURPRISAL, count, 0.0) for count in (1, 2)]
    async with verifying(local) as client:
        verifier: Verifier = client
        assert await verifier.info() == await local.info()
        for probes in ("", "surprisal"):
            both = [STATES, STATES]
            assert await verifier.judge(both, readings, probes) == await local.judge(
                both, readings, probes
            )
        assert await local.judge([STATES], readings[:1]) != await local.judge(
            [STATES], readings[:1], "surprisal"
        )
        with pytest.raises(InvalidRequest, match="no probes 'another'") as caught:
            await verifier.judge([STATES, STATES], readings, "another")
    assert caught.value.parameter == "probes"


def test_table_holds_every_error() -> None:
    def descendants(error_class: type[SemspecError]) -> set[type[SemspecError]]:
        return {error_class}.union(*map(descendants, error_class.__subclasses__()))

    library = SemspecError.__module__
    assert set(TABLE) == {one for one in descendants(SemspecError) if one.__module__ == library} - {
        SemspecError,
        InvalidField,  # forms of InvalidRequest
        InvalidValue,
    }


@pytest.mark.parametrize(
    "error_class",
    [kind for kind in TABLE if not issubclass(kind, Unauthenticated | NotFound | Conflict)],
)
async def test_error_arrives_as_raised(error_class: type[SemspecError]) -> None:
    async with targeting(FakeEngine(error_class("what went wrong: ü", "messages[0]"))) as target:
        for call in (target.score(CONTEXT, [SEGMENT]), collected(target.generate(CONTEXT, ORDER))):
            with pytest.raises(SemspecError) as caught:
                await call
            assert type(caught.value) is error_class
            if error_class is Unavailable:  # of all replicas
                assert (
                    str(caught.value)
                    == "no replica of the target answers: what went wrong: ü; retry"
                )
            else:
                assert (str(caught.value), caught.value.parameter) == (
                    "what went wrong: ü",
                    "messages[0]",
                )


async def test_field_of_a_refusal_is_named_as_the_client_calls_it() -> None:
    async with targeting(FakeEngine(InvalidField("no text matches it", "grammar"))) as target:
        with pytest.raises(InvalidField) as caught:
            await target.encode("x")
    assert caught.value.about("response_format").text == "response_format: no text matches it"


async def test_long_field_name_is_cut_and_in_one_line() -> None:
    error = InvalidField("it is unknown", "\n" * 100_000)
    assert len(error.text) < 2_000 and error.text.isprintable()


async def test_error_after_segments_comes_after_them() -> None:
    class Breaking(FakeEngine):
        async def generate(
            self, context: Context, params: GenerationParams
        ) -> AsyncGenerator[GeneratedSegment, None]:
            for _ in range(2):
                yield GeneratedSegment(SEGMENT, None, 1.0)
            raise ContextTooLong("full")

    received = []
    async with drafting(Breaking()) as drafter:
        with pytest.raises(ContextTooLong, match="full"):
            async for written in drafter.generate(CONTEXT, ORDER):
                received.append(written)
                await asyncio.sleep(0.02)
        assert len(received) == 2


async def test_long_message_is_cut_rather_than_lost() -> None:
    async with targeting(FakeEngine(InvalidRequest("ü" * 100_000))) as target:
        with pytest.raises(InvalidRequest, match=r"^ü{100,}$"):
            await target.encode("x")


@pytest.mark.parametrize("call", ["encode", "write"])
async def test_unknown_exception_is_internal_and_kept_to_the_log(
    call: str, caplog: pytest.LogCaptureFixture
) -> None:
    request_id.set("request-7")
    async with targeting(FakeEngine(RuntimeError(f"secret {NONCE}"))) as target:
        with pytest.raises(InternalError) as caught:
            await (
                target.encode("x")
                if call == "encode"
                else collected(target.generate(CONTEXT, ORDER))
            )
    assert NONCE not in str(caught.value)
    assert NONCE in caplog.text


async def test_request_id_reaches_the_engine() -> None:
    seen = []

    class Listening(FakeEngine):
        async def score(self, *given: Any) -> list[SegmentScore]:
            seen.append(request_id.get())
            return await super().score(*given)

    async with targeting(Listening()) as target:
        for identifier in ("request-8", "", "ungültig"):
            request_id.set(identifier)
            await target.score(CONTEXT, [SEGMENT])
    assert seen == ["request-8", "", ""]


async def test_call_waits_no_longer_than_its_timeout_for_each_response() -> None:
    engine = FakeEngine(step_s=0.2)
    async with targeting(engine, options=ClientOptions(timeout_s=0.5)) as target:
        assert len(await collected(target.generate(CONTEXT, replace(ORDER, max_segments=4)))) == 4
        engine.delay_s, refused = (
            30,
            pytest.raises(DeadlineExceeded, match=r"no response within 0\.5 s"),
        )
        for call in (collected(target.generate(CONTEXT, ORDER)), target.score(CONTEXT, [SEGMENT])):
            with refused:
                await call
        await asyncio.wait_for(engine.closed.wait(), 2)


@pytest.mark.parametrize("side", ["server", "connection"])
async def test_message_over_the_limit_says_so(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a request, and of an answer."""
    monkeypatch.setattr(f"semspec.rpc.{side}.MAX_MESSAGE_BYTES", 4096)
    async with targeting(FakeEngine()) as target:
        call = (
            target.encode("x" * 5000) if side == "server" else target.score(CONTEXT, [SEGMENT] * 60)
        )
        with pytest.raises(InvalidRequest, match=r"larger than max.*send less"):
            await call


async def test_segments_are_clustered_remotely() -> None:
    group = Alternatives("", "How many?", "So far. ", ("One.", "Two.", "One.", "Thr"))
    ends = [SegmentEnd.BOUNDARY, SegmentEnd.EOS, SegmentEnd.BOUNDARY, SegmentEnd.LENGTH]
    async with verifying(FakeVerifier()) as verifier:
        assert await verifier.cluster(group, ends) == [0, 1, 0, None]


@pytest.mark.parametrize("error", [NotFound("no such model"), Conflict("in use")])
async def test_status_that_no_service_answers_is_its_defect(error: SemspecError) -> None:
    async with targeting(FakeEngine(error)) as target:
        with pytest.raises(
            InternalError, match=f"not a status of the gRPC contract: {error.message}"
        ):
            await target.encode("x")


@pytest.mark.parametrize(
    ("token_ids", "num_segments", "complaint"),
    [
        ((), 1, r"segment\.token_ids"),
        ((1,) * (ORDER.max_tokens + 1), 1, "were asked for"),
        ((1,) * 400, 3, "were asked for"),
    ],
)
async def test_malformed_stream_is_the_services_defect(
    token_ids: tuple[int, ...], num_segments: int, complaint: str
) -> None:
    class Confused(FakeEngine):
        async def generate(
            self, context: Context, params: GenerationParams
        ) -> AsyncGenerator[GeneratedSegment, None]:
            for _ in range(num_segments):
                yield GeneratedSegment(replace(SEGMENT, token_ids=token_ids), None, 0.0)

    async with drafting(Confused()) as drafter:
        with pytest.raises(InternalError, match=f"malformed answer: .*{complaint}"):
            await collected(drafter.generate(CONTEXT, ORDER))


async def test_malformed_answer_is_the_services_defect() -> None:
    class Confused(FakeEngine):
        async def propose(self, *_: object) -> Proposal:
            return Proposal((1, 2), (HALVES,), "bytes", 0.0)

        async def verify_tokens(self, *_: object) -> VerifiedTokens:
            return VerifiedTokens((SEGMENT,), (), 3, 0.0)

    class Wrong(FakeVerifier):
        async def judge(self, *given: Any) -> list[Judgement]:
            return [Judgement(2.0, 0.5)] if given[1][0].num_tokens else []

    async with (
        drafting(Confused()) as drafter,
        targeting(Confused()) as target,
        verifying(Wrong()) as verifier,
    ):
        for answer in (
            drafter.propose(CONTEXT, (), ORDER, 2),
            target.verify_tokens(CONTEXT, (), PROPOSAL, ORDER),
            *(
                verifier.judge([STATES], [SegmentScore(STATES, SURPRISAL, number, 0.0)])
                for number in (0, 1)
            ),
        ):
            with pytest.raises(InternalError, match="malformed answer"):
                await answer


class Scrambled(grpc.GenericRpcHandler):
    """Answers every call with bytes that are no message."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        async def stream(request: bytes, context: Any) -> AsyncGenerator[bytes, None]:
            yield b"\x0a\xff"  # also the one response of other methods: it is the same on the wire

        return grpc.unary_stream_rpc_method_handler(stream)


@asynccontextmanager
async def handled_by(handler: grpc.GenericRpcHandler) -> AsyncIterator[int]:
    """The port of a server that is none of ours."""
    server = aio.server()
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield port
    await server.stop(0)


async def test_answer_that_is_no_message_is_the_services_defect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        handled_by(Scrambled()) as port,
        aclosing(RemoteTarget(f"127.0.0.1:{port}")) as target,
        aclosing(RemoteVerifier(f"127.0.0.1:{port}")) as verifier,
    ):
        for call in (
            target.info(),
            target.encode("x"),
            target.score(CONTEXT, [SEGMENT]),
            collected(target.generate(CONTEXT, ORDER)),
            verifier.judge([STATES], [SegmentScore(STATES, SURPRISAL, 1, 0.0)]),
        ):
            with pytest.raises(
                InternalError, match="malformed answer: the bytes are not a message"
            ):
                await call
    assert not [
        record for record in caplog.records if record.exc_info or record.levelname == "ERROR"
    ]


async def test_replica_whose_health_checks_made_no_sense_is_found_again() -> None:
    async with handled_by(Scrambled()) as port:
        pool = RemoteTarget(f"127.0.0.1:{port}", ClientOptions(health_interval_s=0.01))
        with pytest.raises(InternalError):
            await pool.info()
    async with serving(TargetServicer(FakeEngine), settings(port=port)):
        await until(lambda: pool.pool.num_replicas == 1)
        assert (await pool.info()).model == "fake"
        await pool.aclose()


async def test_unavailable_call_reaches_the_only_replica_once() -> None:
    """Another replica is the only retry of a call."""

    class Starting(FakeEngine):
        calls = 0

        async def info(self) -> ModelInfo:
            return await FakeEngine().info()

        def _fail(self) -> None:
            self.calls += 1
            raise Unavailable("starting")

    engine = Starting()
    async with targeting(engine) as target, drafting(engine) as drafter:
        for call in (
            target.encode("x"),
            target.tokenize("x"),
            target.verify_tokens(CONTEXT, (), PROPOSAL, ORDER),
            drafter.propose(CONTEXT, (), ORDER, 1),
            collected(target.generate(CONTEXT, ORDER)),
        ):
            engine.calls = 0
            with pytest.raises(Unavailable, match="starting"):
                await call
            assert engine.calls == 1


async def test_service_of_an_older_contract_is_refused_by_name() -> None:
    older = grpc.method_handlers_generic_handler("semspec.v2.Draft", {})
    async with handled_by(older) as port, aclosing(RemoteDrafter(f"127.0.0.1:{port}")) as drafter:
        with pytest.raises(Mismatch, match=r"another version of the gRPC contract .*; upgrade it"):
            await collected(drafter.generate(CONTEXT, ORDER))


async def score(target: RemoteTarget) -> list[SegmentScore]:
    return await target.score(CONTEXT, [SEGMENT])


async def test_call_that_is_given_up_closes_the_generator_of_the_engine() -> None:
    engine = FakeEngine()
    async with targeting(engine) as target:
        for _ in range(3):
            async with aclosing(target.generate(CONTEXT, replace(ORDER, max_segments=9))) as stream:
                await anext(stream)
            await asyncio.wait_for(engine.closed.wait(), GENEROUS_S)
            engine.closed.clear()
            assert len(await collected(target.generate(CONTEXT, ORDER))) == 3


class Flooding(FakeEngine):
    """Generates without end, faster than anybody reads."""

    num_running = 0

    async def generate(
        self, context: Context, params: GenerationParams
    ) -> AsyncGenerator[GeneratedSegment, None]:
        self.num_running += 1
        try:
            while True:
                self.num_steps += 1
                yield GeneratedSegment(replace(SEGMENT, text="x" * 100_000), None, 1.0)
        finally:
            self.num_running -= 1


async def test_callers_that_do_not_read_hold_no_other_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine, before = Flooding(), 0
    async with targeting(engine) as target:
        streams = [
            target.generate(CONTEXT, replace(ORDER, max_segments=0, max_tokens=2**31))
            for _ in range(30)
        ]
        for stream in streams:
            await anext(stream)
        while before != engine.num_steps:  # until flow control holds the engine back
            before = engine.num_steps
            await asyncio.sleep(0.3)
        async with asyncio.timeout(GENEROUS_S):
            for _ in range(20):
                await score(target)
        assert engine.num_running == 30
        for stream in streams:
            await stream.aclose()
        await until(lambda: engine.num_running == 0)
        assert engine.num_steps <= before + 30
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
