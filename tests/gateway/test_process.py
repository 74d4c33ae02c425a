"""The gateway as a process of its own."""

import socket
import subprocess
from contextlib import nullcontext

import httpx
import pytest

from tests.gateway.processes import SettingError, gateway_process

pytestmark = pytest.mark.slow


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
        ("MAX_CONCURRENT", "0"),
        ("MAX_CONCURRENT_PER_KEY", "0"),
        ("PROT", "8080"),
    ],
)
def test_bad_setting_is_one_line_that_names_it(
    variable: str, value: str, setting_error: SettingError
) -> None:
    assert f"SEMSPEC_GATEWAY_{variable}:" in setting_error(**{variable: value})


def ended(gateway: subprocess.Popen[str]) -> None:
    _, log = gateway.communicate(timeout=30)
    assert gateway.returncode == 0, log
    assert "Traceback" not in log


def test_head_over_the_limit_is_refused() -> None:
    with gateway_process() as (gateway, port):
        for num_bytes, end, status in ((12_000, b"\r\n\r\n", b"200"), (20_000, b"", b"400")):
            with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
                client.sendall(
                    b"GET /health HTTP/1.1\r\nhost: x\r\nx-padding: " + b"x" * num_bytes + end
                )
                assert client.recv(1000).startswith(b"HTTP/1.1 " + status)
        gateway.terminate()
        ended(gateway)


@pytest.mark.parametrize(
    ("settings", "is_closed"), [({}, False), ({"KEEP_ALIVE_S": 1}, True)], ids=str
)
def test_idle_connection_is_kept_as_long_as_the_setting_says(
    settings: dict[str, int], is_closed: bool
) -> None:
    with (
        gateway_process(**settings) as (_, port),
        socket.create_connection(("127.0.0.1", port), 7) as client,
    ):
        client.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        with nullcontext() if is_closed else pytest.raises(TimeoutError):
            while client.recv(1000):
                pass


def told_to_stop(gateway: "subprocess.Popen[str]", port: int) -> None:
    """Wait until the gateway turns load balancers away."""
    while "shutting down" not in httpx.get(f"http://127.0.0.1:{port}/ready").text:
        assert gateway.poll() is None


@pytest.mark.parametrize(("drain_s", "settle_s"), [(0, 0), (1000, 300)])
def test_process_told_to_stop_answers_who_still_waits(drain_s: int, settle_s: int) -> None:
    with gateway_process(GRACE_S=drain_s, SETTLE_S=settle_s) as (gateway, port):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
            client.sendall(
                b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{"
            )
            httpx.get(f"http://127.0.0.1:{port}/health")  # by now the other request has been read
            gateway.terminate()
            if settle_s:
                told_to_stop(gateway, port)
                assert httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
                gateway.terminate()  # a second signal waits for nothing
            answer = b"".join(iter(lambda: client.recv(1000), b""))
        assert (
            answer.startswith(b"HTTP/1.1 503 ")
            and b"retry-after: " in answer
            and b"service_unavailable" in answer
        )
        ended(gateway)
