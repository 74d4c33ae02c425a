"""The gateway over TLS: its own certificate towards clients, and what it shows to the services."""

import ssl
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.gateway.processes import SettingError, gateway_process, variable
from tests.helpers.certificates import Authority, Pair

pytestmark = pytest.mark.slow
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
        ({"SERVICE_CA": "absent"}, "SERVICE_CA", "cannot read"),
        (
            {"SERVICE_CA": "tls.crt", "SERVICE_KEY": "tls.key"},
            "SERVICE_KEY",
            "the certificate is missing",
        ),
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
