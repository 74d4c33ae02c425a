"""The gateway as a process of its own."""

import subprocess
import sys

import httpx
import pytest

from gateway.settings import GatewaySettings
from semspec.settings import load_settings
from tests.gateway.support import free_port, wait_for_port


def run(code: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *code], env=environment, capture_output=True, text=True, timeout=60)


def test_torch_never_reaches_the_process() -> None:
    code = "import sys, gateway.__main__; print({'torch', 'transformers', 'numpy'} & set(sys.modules))"
    assert run(["-c", code]).stdout == "set()\n"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PORT", "http"),
        ("DEFAULT_GAMMA", "0"),
        ("DEFAULT_TEMPERATURE", "nan"),
        ("DEFAULT_STRATEGY", "psychic"),
        ("REDIS_URL", "localhost"),
        ("MAX_N", "9"),
        ("MAX_CONCURRENT", "2"),
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
    result = run(["-m", "gateway"], SEMSPEC_GATEWAY_PORT="http")
    assert result.returncode == 2 and result.stderr.count("\n") == 1


def test_process_serves_and_ends_on_sigterm() -> None:
    port = free_port()
    environment = {"SEMSPEC_GATEWAY_PORT": str(port), "SEMSPEC_GATEWAY_REDIS_URL": "redis://127.0.0.1:1/0"}
    environment |= {f"SEMSPEC_GATEWAY_{role}_ADDRESS": "127.0.0.1:1" for role in ("DRAFT", "TARGET", "VERIFIER")}
    process = subprocess.Popen([sys.executable, "-m", "gateway"], env=environment, stderr=subprocess.PIPE, text=True)
    try:
        wait_for_port(port)
        assert httpx.get(f"http://127.0.0.1:{port}/health").json() == {"status": "ok"}
        assert httpx.get(f"http://127.0.0.1:{port}/ready").status_code == 503
        process.terminate()
        _, log = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, log
    assert "Traceback" not in log
