"""Spans of calls between a client and a server of ours, as a collector receives them."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from semspec.errors import ContextTooLong
from semspec.observability import FLUSH_TIMEOUT_S, current, detached_span, exported_traces, span
from tests.helpers.pools import targeting
from tests.helpers.rpc import CONTEXT, ORDER, SEGMENT, FakeEngine
from tests.test_observability.collector import GENEROUS_S, Collector, Received, collecting, named

VARIABLES = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_SDK_DISABLED",
)
REMOTE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
CALLER = TraceContextTextMapPropagator().extract(REMOTE)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector that this process is told to send to."""
    with collecting() as collector:
        for name, value in collector.environment.items():
            monkeypatch.setenv(name, value)
        yield collector


def both_sides(spans: list[Received], name: str) -> tuple[Received, Received]:
    [client], [server] = named(spans, name, "client"), named(spans, name, "server")
    assert server.parent_id == client.span_id and server.trace_id == client.trace_id
    return client, server


async def test_call_leaves_a_span_on_either_side_below_the_active_one(collector: Collector) -> None:
    with exported_traces("semspec-test"):
        async with targeting(FakeEngine()) as client:
            with span("request", SpanKind.SERVER, context=CALLER):
                await client.info()
                await client.score(CONTEXT, [SEGMENT, SEGMENT])
                assert [written async for written in client.generate(CONTEXT, ORDER)]
    [request] = named(collector.spans, "request")
    assert REMOTE["traceparent"] == f"00-{request.trace_id}-{request.parent_id}-01"
    for name, num_segments in (
        ("semspec.v2.Target/Score", 2),
        ("semspec.v2.Target/Generate", ORDER.max_segments),
    ):
        caller, server = both_sides(collector.spans, name)
        assert caller.parent_id == request.span_id and not server.has_failed
        assert server.attributes["semspec.num_segments"] == num_segments
        assert server.attributes["rpc.response.status_code"] == "OK"
    assert len(collector.spans) == 5, "a handshake leaves none"


async def test_error_is_recorded_by_its_code_and_without_its_words(collector: Collector) -> None:
    with exported_traces("semspec-test"):
        async with targeting(FakeEngine(error=ContextTooLong("the words of a prompt"))) as client:
            with pytest.raises(ContextTooLong):
                await client.score(CONTEXT, [SEGMENT])
    for side in both_sides(collector.spans, "semspec.v2.Target/Score"):
        assert side.has_failed and side.attributes["error.type"] == "context_length_exceeded"
        assert side.attributes["rpc.response.status_code"] == "OUT_OF_RANGE"
    assert not any(b"the words of a prompt" in body for body in collector.bodies)


async def test_cancelled_stream_is_recorded_as_such_with_what_it_had_written(
    collector: Collector,
) -> None:
    with exported_traces("semspec-test"):
        engine = FakeEngine(step_s=0.01)
        async with targeting(engine) as client:
            async with aclosing(client.generate(CONTEXT, ORDER)) as segments:
                await anext(segments)
            await engine.closed.wait()
    for side in both_sides(collector.spans, "semspec.v2.Target/Generate"):
        assert side.attributes["rpc.response.status_code"] == "CANCELLED"
        assert side.attributes["semspec.cancelled"] is True and not side.has_failed


async def test_span_around_a_generator_is_not_current_in_its_consumer(collector: Collector) -> None:
    async def produce() -> AsyncGenerator[int, None]:
        with detached_span("produce") as opened:
            for number in range(2):
                with current(opened), span("step", attributes={"known": number, "unknown": None}):
                    await asyncio.sleep(0)
                yield number

    with exported_traces("semspec-test"), span("consume") as consumer:
        async with aclosing(produce()) as numbers:
            async for _ in numbers:
                assert trace.get_current_span() is consumer
    [parent], [producer] = named(collector.spans, "consume"), named(collector.spans, "produce")
    assert producer.parent_id == parent.span_id
    assert [step.parent_id for step in named(collector.spans, "step")] == [producer.span_id] * 2
    assert [step.attributes for step in named(collector.spans, "step")] == [
        {"known": 0},
        {"known": 1},
    ]


@pytest.mark.parametrize(
    "variables", [{}, {"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}]
)
def test_nothing_is_recorded_or_sent_when(
    variables: dict[str, str], collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not variables:
        monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with exported_traces("semspec-test"), span("work") as opened:
        assert not opened.is_recording() and not opened.get_span_context().is_valid
    assert collector.bodies == []


def test_library_needs_no_sdk_while_traces_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    program = """
import sys
sys.modules["opentelemetry.sdk"] = sys.modules["opentelemetry.exporter"] = None
import semspec.rpc.clients, semspec.rpc.servicers
from semspec.observability import exported_traces, mark_failed, span
with exported_traces("semspec-test"), span("work", attributes={"key": None}) as opened:
    opened.set_attribute("key", "value")
    mark_failed(opened, "code")
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


def test_missing_extra_costs_one_warning(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with exported_traces("semspec-test"), span("work") as opened:
        assert not opened.is_recording()
    [line] = caplog.messages
    assert "pip install" in line and "[otel]" in line


def test_collector_that_never_answers_holds_up_the_end_for_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("semspec.observability.FLUSH_TIMEOUT_S", 0.2)
    assert FLUSH_TIMEOUT_S <= 3
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{collector.address}")
    monkeypatch.setenv(
        "OTEL_EXPORTER_OTLP_TIMEOUT", "3"
    )  # more than the 1.2 s before the exporter's first retry
    start, before = time.perf_counter(), threading.enumerate()
    with exported_traces("semspec-test"), span("work"):
        pass
    assert time.perf_counter() - start < 20
    assert "the last spans are lost" in caplog.messages[-1]
    for exporter in set(threading.enumerate()) - set(
        before
    ):  # its draws would disturb Hypothesis in later tests
        exporter.join(GENEROUS_S)
        assert not exporter.is_alive()
