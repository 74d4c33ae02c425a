"""The gateway as a process of its own."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from semspec.gateway.settings import GatewaySettings
from semspec.settings import load_settings
from tests.gateway.support import free_port, wait_for_port

pytestmark = pytest.mark.slow


def run(code: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *code], env=environment, capture_output=True, text=True, timeout=60)


def test_torch_never_reaches_the_process() -> None:
    code = "import sys, semspec.gateway.__main__; print({'torch', 'transformers', 'numpy'} & set(sys.modules))"
    assert run(["-c", code]).stdout == "set()\n"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PORT", "http"),
        ("DEFAULTS", '{"gamma": 0}'),
        ("DEFAULTS", '{"temperature": NaN}'),
        ("DEFAULTS", '{"strategy": "psychic"}'),
        ("DEFAULTS", '{"gammma": 1}'),
        ("DEFAULTS", "gamma=1"),
        ("DEFAULTS", "[]"),
        ("REDIS_URL", "localhost"),
        ("MAX_N", "9"),
        ("MAX_CONCURRENT", "2"),
        ("MAX_CONCURRENT_PER_KEY", "2"),
        ("PROT", "8080"),
    ],
)
def test_bad_setting_is_one_line_that_names_it(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(f"SEMSPEC_GATEWAY_{variable}", value)
    with pytest.raises(SystemExit) as end:
        load_settings(GatewaySettings)
    line = capsys.readouterr().err
    assert end.value.code == 2 and line.count("\n") == 1 and f"SEMSPEC_GATEWAY_{variable}:" in line


def test_process_with_a_bad_setting_ends_before_it_listens() -> None:
    result = run(["-m", "semspec.gateway"], SEMSPEC_GATEWAY_PORT="http")
    assert result.returncode == 2 and result.stderr.count("\n") == 1


@contextmanager
def process(**environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A gateway without services and Redis, and its URL."""
    port = free_port()
    environment |= {"SEMSPEC_GATEWAY_PORT": str(port), "SEMSPEC_GATEWAY_REDIS_URL": "redis://127.0.0.1:1/0"}
    environment |= {f"SEMSPEC_GATEWAY_{role}_ADDRESS": "127.0.0.1:1" for role in ("DRAFT", "TARGET", "VERIFIER")}
    environment |= {"SEMSPEC_GATEWAY_AUTH": "none"}
    gateway = subprocess.Popen(
        [sys.executable, "-m", "semspec.gateway"], env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for_port(port)
        yield gateway, f"http://127.0.0.1:{port}"
    finally:
        gateway.kill()
        gateway.wait()


def ended(gateway: subprocess.Popen[str]) -> None:
    _, log = gateway.communicate(timeout=30)
    assert gateway.returncode == 0, log
    assert "Traceback" not in log


def test_process_serves_and_ends_on_sigterm() -> None:
    with process() as (gateway, url):
        assert httpx.get(f"{url}/health").json() == {"status": "ok"}
        assert httpx.get(f"{url}/ready").status_code == 503
        gateway.terminate()
        ended(gateway)


def test_head_over_the_limit_is_refused() -> None:
    with process() as (gateway, url):
        for num_bytes, end, status in ((12_000, b"\r\n\r\n", b"200"), (20_000, b"", b"400")):
            with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=30) as client:
                client.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\nx-padding: " + b"x" * num_bytes + end)
                assert client.recv(1000).startswith(b"HTTP/1.1 " + status)
        gateway.terminate()
        ended(gateway)


@pytest.mark.parametrize(("drain_s", "settle_s"), [(0, 0), (1000, 300)])
def test_process_told_to_stop_answers_who_still_waits(drain_s: int, settle_s: int) -> None:
    times = {"SEMSPEC_GATEWAY_DRAIN_S": str(drain_s), "SEMSPEC_GATEWAY_SETTLE_S": str(settle_s)}
    with process(**times) as (gateway, url):
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=30) as client:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{")
            httpx.get(f"{url}/health")  # by now the other request has been read
            gateway.terminate()
            if settle_s:
                while "shutting down" not in httpx.get(f"{url}/ready").text:
                    pass
                gateway.terminate()  # a second signal waits for nothing
            answer = b"".join(iter(lambda: client.recv(1000), b""))
        assert answer.startswith(b"HTTP/1.1 503 ") and b"retry-after: " in answer and b"service_unavailable" in answer
        ended(gateway)


def test_process_told_to_stop_turns_load_balancers_away_before_it_refuses_connections() -> None:
    with process(SEMSPEC_GATEWAY_SETTLE_S="60") as (gateway, url):
        gateway.terminate()
        while "shutting down" not in httpx.get(f"{url}/ready").text:
            assert gateway.poll() is None
        assert httpx.get(f"{url}/health").status_code == 200
        gateway.terminate()
        ended(gateway)
