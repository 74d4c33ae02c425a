"""What each replica of a service tells Prometheus on a port of its own."""

import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep

import httpx
import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from semspec.errors import Unavailable
from semspec.rpc.metrics import MAX_CLIENTS, MetricsServer
from semspec.rpc.server import EXIT_CANNOT_SERVE, serve
from semspec.rpc.servicers import DraftServicer
from tests.helpers.certificates import Authority
from tests.helpers.gateway import free_port
from tests.helpers.pools import GENEROUS_S
from tests.helpers.rpc import FakeEngine, settings
from tests.test_observability.conftest import Observed
from tests.test_observability.test_monitoring import asked_of_services


def scrape(port: int) -> Mapping[str, float]:
    """The value of each sample without labels, and the number of each histogram."""
    families = text_string_to_metric_families(
        httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text
    )
    return {
        sample.name: sample.value
        for family in families
        for sample in family.samples
        if not sample.labels
    }


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="package")
async def test_numbers_of_each_replica_are_those_of_its_calls(observed: Observed) -> None:
    before = {role: scrape(port) for role, port in observed.metrics.items()}
    body = {
        "model": "semspec-demo",
        "messages": [{"role": "user", "content": "Tom has pens: 25. Day 1: Tom naps."}],
    }
    alone, judged = [
        (await observed.http.post("/v1/chat/completions", json=body | {"semspec": options})).json()
        for options in ({"strategy": "target"}, {"strategy": "semantic", "gamma": 1})
    ]
    after = {role: scrape(port) for role, port in observed.metrics.items()}
    draft, target, verifier = (
        {
            name.removeprefix("semspec_engine_"): after[role][name] - before[role][name]
            for name in after[role]
        }
        for role in after
    )
    num_judged = judged["semspec"]["num_accepted"] + judged["semspec"]["num_rejected"]
    assert verifier["semspec_verifier_segments_total"] == num_judged > 0
    assert 0 < verifier["semspec_verifier_step_duration_seconds_count"] <= num_judged
    num_rewritten = round(judged["semspec"]["target_ratio"] * judged["usage"]["completion_tokens"])
    num_written = alone["usage"]["completion_tokens"] + num_rewritten
    assert target["generated_tokens_total"] == num_written > 0
    assert draft["generated_tokens_total"] > 0
    for one in (draft, target):
        assert 0 < one["step_duration_seconds_count"] <= one["computed_tokens_total"]
        assert 0 < one["prefix_cache_hits_total"] < one["prefix_cache_queries_total"]
        assert one["step_duration_seconds_sum"] > 0 and one["preemptions_total"] == 0
    for now in (after["draft"], after["target"]):
        assert 0 < now["semspec_engine_kv_bytes"] < now["semspec_engine_max_kv_bytes"]
        assert now["semspec_engine_calls_running"] == now["semspec_engine_calls_waiting"] == 0
    told = {
        name
        for role in after
        for name in after[role]
        if name.startswith("semspec_") and not name.endswith("_sum")
    }
    assert told == {name.replace("_bucket", "_count") for name in asked_of_services("semspec")}


def test_metrics_port_that_is_taken_ends_the_start_before_the_model_loads() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        own = {
            "SEMSPEC_METRICS_PORT": str(port),
            "SEMSPEC_DRAFT_PORT": "0",
            "SEMSPEC_DRAFT_MODEL": "no/such/model",
        }
        command = [sys.executable, "-m", "semspec_draft"]
        ended = subprocess.run(
            command, env=os.environ | own, capture_output=True, text=True, timeout=60, check=False
        )
    assert ended.returncode == EXIT_CANNOT_SERVE
    assert [
        f"SEMSPEC_METRICS_PORT: cannot listen on {port}" in line
        for line in ended.stderr.splitlines()
    ] == [True]


async def test_metrics_port_without_its_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "semspec.rpc.metrics")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(
        Unavailable, match=r"prometheus_client is not installed; .* or unset SEMSPEC_METRICS_PORT"
    ):
        await serve(DraftServicer(FakeEngine), settings(metrics_port=1))


def test_metrics_have_the_certificate_of_the_service_and_wait_for_no_silent_client(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    pair, port = authority.issue("draft", "localhost"), free_port()
    with MetricsServer(
        settings(tls_certificate=pair.certificate, tls_key=pair.key), port
    ) as server:
        with socket.create_connection(("127.0.0.1", port)):
            trusted = ssl.create_default_context(cafile=authority.file)
            assert (
                "python_info"
                in httpx.get(f"https://localhost:{port}/", verify=trusted, timeout=30).text
            )
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.get(f"http://localhost:{port}/")
        server.shutdown()
    REGISTRY.unregister(server)


@pytest.mark.parametrize("head", [b"", b"GET /metrics HTTP/1.1\r\nx-dribble: "])
def test_slow_clients_neither_delay_a_scrape_nor_stay_connected(
    monkeypatch: pytest.MonkeyPatch, head: bytes
) -> None:
    monkeypatch.setattr("semspec.rpc.metrics.CLIENT_S", 1.0)
    port = free_port()
    with ExitStack() as stack, MetricsServer(settings(), port) as server:
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            for _ in range(2 * MAX_CLIENTS)
        ]
        for client in clients:
            client.sendall(head)
        for _ in range(5):
            assert (
                "python_info"
                in httpx.get(f"http://127.0.0.1:{port}/", trust_env=False, timeout=5).text
            )
        deadline = monotonic() + GENEROUS_S
        while clients and monotonic() < deadline:
            clients = [client for client in clients if is_connected(client)]
            sleep(0.1)  # less than the timeout of a single read
        assert not clients
        server.shutdown()
    REGISTRY.unregister(server)


def is_connected(client: socket.socket) -> bool:
    """Send one more byte of a request that never ends."""
    try:
        client.sendall(b"x")
        return True
    except OSError:
        return False


def test_metrics_server_that_fails_is_started_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("semspec.background.FIRST_DELAY_S", 0.01)
    port, failures = free_port(), [RuntimeError("no room for another thread")]

    class Failing(MetricsServer):
        def service_actions(self) -> None:
            if failures:
                raise failures.pop()

    with Failing(settings(), port) as server:
        deadline = monotonic() + GENEROUS_S
        while "the metrics server failed; it starts again in 0.01 s" not in caplog.text:
            assert monotonic() < deadline
            sleep(0.01)
        assert (
            "python_info"
            in httpx.get(f"http://127.0.0.1:{port}/", trust_env=False, timeout=30).text
        )
        server.shutdown()
    REGISTRY.unregister(server)
