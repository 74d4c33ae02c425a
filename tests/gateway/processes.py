"""The gateway as a process of its own, without services and Redis."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from semspec.settings import described, load_settings
from semspec_gateway.settings import GatewaySettings
from tests.helpers.gateway import NO_REDIS, free_port, wait_for_port

SettingError = Callable[..., str]


def variable(name: str) -> str:
    """The gateway's own, or the one that it shares with the services."""
    shared = f"SEMSPEC_{name}"
    return (
        shared
        if shared in {one.variable for one in described(GatewaySettings)}
        else f"SEMSPEC_GATEWAY_{name}"
    )


@contextmanager
def gateway_process(**settings: object) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """The process and its port."""
    port = free_port()
    addresses = dict.fromkeys(
        ("DRAFT_ADDRESS", "TARGET_ADDRESS", "VERIFIER_ADDRESS"), "127.0.0.1:1"
    )
    settings = {"PORT": port, "REDIS_URL": NO_REDIS, "AUTH": "none", **addresses, **settings}
    environment = {variable(name): str(value) for name, value in settings.items()}
    command = [sys.executable, "-m", "semspec_gateway"]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        wait_for_port(port)
        yield process, port
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def setting_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> SettingError:
    """Loads settings that end the process; the one line that it says."""

    def error(**settings: object) -> str:
        for name, value in settings.items():
            monkeypatch.setenv(variable(name), str(value))
        with pytest.raises(SystemExit) as end:
            load_settings(GatewaySettings)
        [line] = capsys.readouterr().err.splitlines()
        assert end.value.code == 2
        return line

    return error
