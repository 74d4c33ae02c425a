"""The gateway as a process of its own: settings, TLS, connections, shutdown."""

import socket
import ssl
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import httpx
import pytest

from tests.gateway.processes import SettingError, gateway_process, variable
from tests.helpers.certificates import Authority, Pair

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PORT", "http"),
        ("DEFAULTS", '{"temperature": NaN}'),
        ("DEFAULTS", '{"gammma": 1}'),
        ("DEFAULTS", "gamma=1"),
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
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: " in answer
        assert b"service_unavailable" in answer
        ended(gateway)


GENEROUS_S = 30.0


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@contextmanager
def served(pair: Pair) -> Iterator[int]:
    """A gateway process with this certificate; its port."""
    with gateway_process(TLS_CERTIFICATE=pair.certificate, TLS_KEY=pair.key) as (_, port):
        yield port


def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority.file)


def health(port: int, context: ssl.SSLContext, host: str = "127.0.0.1") -> int:
    """The status of `/health` over a connection of its own."""
    return httpx.get(
        f"https://{host}:{port}/health", verify=context, timeout=GENEROUS_S
    ).status_code


def knowing(version: ssl.TLSVersion, authority: Authority) -> ssl.SSLContext:
    """A client of one version of TLS, however old its ciphers."""
    context = trusting(authority)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = version
    context.set_ciphers("ALL:@SECLEVEL=0")
    return context


def test_clients_are_served_over_tls_and_over_nothing_else(authority: Authority) -> None:
    with served(authority.issue("gateway", "127.0.0.1", "localhost")) as port:
        assert (
            health(port, trusting(authority))
            == health(port, trusting(authority), "localhost")
            == 200
        )
        with pytest.raises(httpx.ConnectError, match="verify failed"):
            health(port, ssl.create_default_context())
        assert health(port, knowing(ssl.TLSVersion.TLSv1_2, authority)) == 200
        with pytest.raises(httpx.ConnectError, match="EOF"):
            health(port, knowing(ssl.TLSVersion.TLSv1_1, authority))
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.get(f"http://127.0.0.1:{port}/health", timeout=GENEROUS_S)


def test_renewed_certificate_is_shown_without_a_restart(
    authority: Authority, tmp_path: Path
) -> None:
    newer = tmp_path / "newer"
    newer.mkdir()
    successor = Authority(newer)
    pair = authority.issue("gateway")
    with served(pair) as port:
        assert health(port, trusting(authority)) == 200
        renewed = successor.issue("gateway")
        renewed.certificate.replace(
            pair.certificate
        )  # between the two, certificate and key do not fit
        assert health(port, trusting(authority)) == 200
        renewed.key.replace(pair.key)
        assert health(port, trusting(successor)) == 200
        with pytest.raises(httpx.ConnectError, match="verify failed"):
            health(port, trusting(authority))


@pytest.mark.parametrize(
    ("files", "named", "remedy"),
    [
        ({"SERVICE_CA": "tls.key"}, "SERVICE_CA", "not contain a PEM certificate"),
        (
            {"SERVICE_CERTIFICATE": "tls.crt", "SERVICE_KEY": "tls.key"},
            "SERVICE_KEY",
            "set service_ca",
        ),
    ],
)
def test_certificate_of_no_use_is_one_line_that_names_it(
    files: dict[str, str],
    named: str,
    remedy: str,
    authority: Authority,
    setting_error: SettingError,
) -> None:
    folder = authority.issue("gateway").key.parent
    line = setting_error(AUTH="none", **{name: folder / file for name, file in files.items()})
    assert f"{variable(named)}: " in line and remedy in line
