"""Engines in this process and behind real sockets, and what a generation on them leaves behind."""

import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any, cast

import pytest

from semspec.decoding import Backends, Generation, Verifier, decode
from semspec.protocols import Engine
from semspec.rpc.clients import RemoteDrafter, RemoteTarget, RemoteVerifier
from semspec.rpc.connection import ClientOptions
from semspec.rpc.server import ServiceServer
from semspec.rpc.servicers import (
    DraftServicer,
    ServedVerifier,
    Servicer,
    TargetServicer,
    VerifierServicer,
)
from semspec.settings import ServiceSettings
from semspec.types import SegmentRecord, StageTimes
from tests.helpers.checkpoints import loaded, random_probes

PROMPT = (
    "Tom has pens: 25. Day 1: Tom sells 6 pens. How many pens does Tom have now?\n\n<think>\n\n"
)
TURNS = "{% for message in messages %}{{ message['content'] + '\n\n' }}{% endfor %}"
"""A chat template that keeps earlier turns, so that the target can grade steps."""
Players = tuple[Engine, Engine, ServedVerifier]


@asynccontextmanager
async def behind_sockets(
    draft: Engine, target: Engine, verifier: Verifier
) -> AsyncIterator[Backends]:
    """The same roles, each behind a server of its own."""
    async with AsyncExitStack() as stack:

        async def serve(servicer: Servicer[Any]) -> str:
            server = ServiceServer(servicer, ServiceSettings())
            await server.start()
            stack.push_async_callback(server.abandon)
            await server.load()
            return server.address

        options = ClientOptions()
        clients = (
            RemoteDrafter(await serve(DraftServicer(lambda: draft)), options),
            RemoteTarget(await serve(TargetServicer(lambda: target)), options),
            RemoteVerifier(
                await serve(VerifierServicer(lambda: cast(ServedVerifier, verifier))), options
            ),
        )
        for client in clients:
            stack.push_async_callback(client.aclose)
        yield Backends(*clients)


@asynccontextmanager
async def engines(
    checkpoints: dict[str, Path],
    folder: Path,
    window: int | None = None,
    probes: Path | None = None,
) -> AsyncIterator[Players]:
    """A Llama and a Qwen2 of one vocabulary in this process, with probes that know nothing, in `folder`.

    `probes`: the folder from which both engines have projections once they read it again.
    """
    target_folder = shutil.copytree(checkpoints["qwen2"], folder / "target")
    (target_folder / "chat_template.jinja").write_text(TURNS)
    options = {"max_context_tokens": window, "probes": probes}
    async with loaded(checkpoints["llama"], target_folder, **options) as (draft, target):
        yield draft, target, await random_probes(draft, target, folder)


async def trace(generation: Generation, backends: Backends) -> list[SegmentRecord]:
    """The records, without times."""
    events = [event async for event in decode(generation, backends)]
    return [
        replace(event, times=StageTimes()) for event in events if isinstance(event, SegmentRecord)
    ]


def assert_same(one: list[SegmentRecord], other: list[SegmentRecord]) -> None:
    """Everything equal; probabilities as far as cached and recomputed states agree."""
    blank = [[replace(record, judgement=None) for record in records] for records in (one, other)]
    assert blank[0] == blank[1]
    for a, b in zip(one, other, strict=True):
        judged, expected = (record.judgement and astuple(record.judgement) for record in (a, b))
        assert judged == (expected and pytest.approx(expected, abs=1e-3))
