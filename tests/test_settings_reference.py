"""Settings are described where users look: `--help` of each process, and docs/settings.md."""

import subprocess
import sys

import pytest
from pydantic_settings import BaseSettings

from semspec.settings import described, parse_command
from semspec_draft.settings import DraftSettings
from semspec_gateway.settings import GatewaySettings
from semspec_target.settings import TargetSettings
from semspec_verifier.settings import VerifierSettings

CLASSES: list[type[BaseSettings]] = [
    GatewaySettings,
    DraftSettings,
    TargetSettings,
    VerifierSettings,
]


def test_page_is_fresh() -> None:
    result = subprocess.run(
        [sys.executable, "scripts/settings-reference", "--check"], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("settings_class", CLASSES)
def test_help_names_every_variable(
    settings_class: type[BaseSettings],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["service", "--help"])
    with pytest.raises(SystemExit) as ended:
        parse_command(settings_class, "python -m service")
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    listed = list(described(settings_class))
    assert len(listed) == len(settings_class.model_fields)
    assert all(f"{one.variable} [{one.default}]" in shown and one.description for one in listed)


def test_argument(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["service", "--port", "80"])
    with pytest.raises(SystemExit) as ended:
        parse_command(GatewaySettings, "python -m service")
    assert ended.value.code == 2 and "--port" in capsys.readouterr().err
