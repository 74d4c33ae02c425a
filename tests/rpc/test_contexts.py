"""Calls that carry only what is new in a context are answered as those that carry all of it."""

from contextlib import AbstractContextManager, aclosing
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from opentelemetry.trace import Span

from semspec.errors import NotFound
from semspec.rpc.calls import client_span
from semspec.rpc.clients import RemoteTarget
from semspec.rpc.connection import ClientOptions
from semspec.rpc.contexts import LastContexts
from semspec.rpc.servicers import TargetServicer
from semspec.settings import ServiceSettings
from semspec.types import Context, Piece, Segment, SegmentEnd, Writer
from tests.helpers.pools import targeting
from tests.helpers.rpc import ORDER, SEGMENT, FakeEngine, serving


def segment(number: int, writer: Writer = Writer.DRAFT) -> Segment:
    return Segment(f"Step {number}.\n\n", (number, 2**32 - 1), "t", writer, SegmentEnd.BOUNDARY)


PROMPT = Piece("A prompt.", tuple(range(900)), "t")
WHOLE = Context((PROMPT, *(segment(number) for number in range(40))))


def grown(random: Random) -> list[Context]:
    """Contexts of a session, in which some segments are taken back and others put in their place."""
    contexts = [Context((PROMPT,))]
    for number in range(60):
        pieces = contexts[-1].pieces
        kept = pieces[: random.randint(1, len(pieces))] if random.random() < 0.3 else pieces
        writer = random.choice((Writer.DRAFT, Writer.TARGET))
        contexts.append(
            Context((*kept, *(segment(number, writer) for _ in range(random.randint(0, 2)))))
        )
    return contexts


@pytest.mark.parametrize("seed", range(5))
def test_both_ends_agree_on_every_context(seed: int) -> None:
    caller, service = LastContexts(), LastContexts()
    num_sent = 0
    for context in grown(Random(seed)):
        rest, before = caller.rest("s", context)
        whole = service.whole("s", before, rest.pieces) if before else rest
        assert whole == context
        num_sent += len(rest.pieces)
        caller.note("s", context)
        service.note("s", whole)
    assert num_sent < 100


def test_only_what_is_new_is_sent() -> None:
    contexts = LastContexts()
    assert contexts.rest("s", WHOLE) == (WHOLE, b"")
    contexts.note("s", WHOLE)
    assert contexts.rest("s", WHOLE)[0].pieces == ()
    assert contexts.rest("s", WHOLE.extended(segment(7)))[0].pieces == (segment(7),)
    assert contexts.rest("another session", WHOLE) == (WHOLE, b"")
    other_prompt = Context((replace(PROMPT, text="Another."), *WHOLE.pieces[1:]))
    assert contexts.rest("s", other_prompt) == (other_prompt, b"")
    contexts.note("", WHOLE)
    assert contexts.rest("", WHOLE) == (WHOLE, b"")


@pytest.mark.parametrize(
    "other",
    [
        replace(segment(1), text="Step 2.\n\n"), replace(segment(1), token_ids=(1,)),
        replace(segment(1), tokenizer="u"), replace(segment(1), writer=Writer.TARGET),
        replace(segment(1), end=SegmentEnd.EOS),
        Piece("Step 1.\n\n", (1, 2**32 - 1), "t"),
    ],
)  # fmt: skip
def test_digest_is_of_everything_in_a_piece(other: Piece) -> None:
    """A service that has another context is asked for one that it does not have."""
    caller, service = LastContexts(), LastContexts()
    caller.note("s", Context((PROMPT, segment(1))))
    service.note("s", Context((PROMPT, other)))
    rest, before = caller.rest("s", Context((PROMPT, segment(1), segment(2))))
    assert rest.pieces == (segment(2),)
    with pytest.raises(NotFound):
        service.whole("s", before, rest.pieces)


def test_memory_is_bounded_and_the_oldest_forgotten() -> None:
    contexts = LastContexts(max_bytes=400_000)
    for number in range(50):
        contexts.note(f"s{number}", WHOLE)
        contexts.note("s0", WHOLE)
    assert contexts.rest("s49", WHOLE)[1] and contexts.rest("s0", WHOLE)[1]
    assert sum(bool(contexts.rest(f"s{number}", WHOLE)[1]) for number in range(50)) == 8
    contexts.note("large", Context((Piece("x" * 200_000, (), "t"),)))
    assert not any(contexts.rest(f"s{number}", WHOLE)[1] for number in range(50))


def test_names_of_sessions_count() -> None:
    contexts, small = LastContexts(max_bytes=4_000_000), Context((segment(1),))
    names = [f"{number}" + "s" * 400_000 for number in range(10)]
    for name in names:
        contexts.note(name, small)
    assert sum(bool(contexts.rest(name, small)[1]) for name in names) == 2


class Contexts(FakeEngine):
    """Notes the contexts of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.received: list[Context] = []

    def generate(self, context, params):  # type: ignore[no-untyped-def]
        self.received.append(context)
        return super().generate(context, params)

    async def score(self, context, *others):  # type: ignore[no-untyped-def]
        self.received.append(context)
        return await super().score(context, *others)


async def ask(client: RemoteTarget, contexts: list[Context]) -> None:
    for number, context in enumerate(contexts):
        if number % 3 == 0:
            await client.score(context, [SEGMENT], "s")
        else:
            async with aclosing(
                client.generate(context, replace(ORDER, max_segments=3, session="s"))
            ) as segments:
                assert [one async for one in segments]


async def test_engine_gets_whole_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(
        "semspec.rpc.connection.client_span", lambda path, request: _measured(sizes, path, request)
    )
    engine, contexts = Contexts(), grown(Random(1))
    async with targeting(engine) as client:
        await ask(client, contexts)
    assert engine.received == contexts
    assert sizes[0] > 1500 and max(sizes[1:]) < 400


async def test_service_that_forgot_is_sent_the_whole_context() -> None:
    engine, restarted, contexts = Contexts(), Contexts(), grown(Random(2))
    async with serving(TargetServicer(lambda: engine)) as first:
        client = RemoteTarget(first.address, ClientOptions())
        await ask(client, contexts[:20])
        port = int(first.address.rpartition(":")[2])
    async with serving(TargetServicer(lambda: restarted), ServiceSettings(port=port)):
        await ask(client, contexts[20:])
        await client.aclose()
    assert engine.received + restarted.received == contexts


def _measured(sizes: list[int], path: str, request: Any) -> AbstractContextManager[Span]:
    if not path.endswith("/Info"):  # which a health check asks for
        sizes.append(request.ByteSize())
    return client_span(path, request)
