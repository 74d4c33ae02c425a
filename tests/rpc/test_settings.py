"""Settings: what an operator may write, and what a mistake says."""

import os
from pathlib import Path

import pytest
from pydantic import SecretStr

from semspec.gateway.settings import GatewaySettings
from semspec.services.draft.settings import DraftSettings
from semspec.services.target.settings import TargetSettings
from semspec.services.verifier.settings import VerifierSettings
from semspec.settings import described, load_settings, read_settings


@pytest.fixture(autouse=True)
def _only_own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("SEMSPEC_"):
            monkeypatch.delenv(name)


def complaint(
    settings_class: type[DraftSettings | GatewaySettings | VerifierSettings], capsys: pytest.CaptureFixture[str]
) -> str:
    with pytest.raises(SystemExit) as exit_:
        load_settings(settings_class)
    assert exit_.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    return line


def test_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMSPEC_DRAFT_MODEL", "m")
    monkeypatch.setenv("SEMSPEC_SERVICE_TOKEN", "")
    monkeypatch.setenv("SEMSPEC_DRAFT_MAX_CONTEXT_TOKENS", "")
    assert load_settings(DraftSettings).service_token is None


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("SEMSPEC_DRAFT_PORT", "65536", "0 picks a free one"),
        ("SEMSPEC_DRAFT_PORT", "tcp://10.0.0.1:50051", "0 picks a free one"),
        ("SEMSPEC_DRAFT_DEVICE", "tpu", "auto, cpu, cuda or cuda:N"),
        ("SEMSPEC_DRAFT_DTYPE", "int8", "float32, bfloat16"),
        ("SEMSPEC_DRAFT_THREADS", "0", "CPU threads"),
        ("SEMSPEC_DRAFT_PROT", "1", "SEMSPEC_DRAFT_PORT"),
    ],
)
def test_bad_value_ends_the_process_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, value: str, remedy: str
) -> None:
    monkeypatch.setenv("SEMSPEC_DRAFT_MODEL", "m")
    monkeypatch.setenv(name, value)
    line = complaint(DraftSettings, capsys)
    assert f"{name}: " in line
    assert remedy in line


@pytest.mark.parametrize(
    ("name", "now"),
    [
        ("SEMSPEC_GATEWAY_HOST", "SEMSPEC_HOST"),
        ("SEMSPEC_GATEWAY_SERVICE_TOKEN", "SEMSPEC_SERVICE_TOKEN"),
        ("SEMSPEC_GATEWAY_TOKEN", "SEMSPEC_SERVICE_TOKEN"),
        ("SEMSPEC_GATEWAY_DRAIN_S", "SEMSPEC_GRACE_S"),
        ("SEMSPEC_GATEWAY_AUDIT_SHARE", "SEMSPEC_GATEWAY_AUDIT"),
        ("SEMSPEC_GATEWAY_COLLECT_MAX_ANSWERS", "SEMSPEC_GATEWAY_COLLECT"),
        ("SEMSPEC_LOGLEVEL", "SEMSPEC_LOG_LEVEL"),
    ],
)
def test_former_or_misspelt_name_is_refused_with_the_present_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, now: str
) -> None:
    monkeypatch.setenv(name, "1")
    assert complaint(GatewaySettings, capsys).endswith(f"{name}: no such setting, did you mean {now}?")


def test_shared_variable_is_for_every_process_and_those_of_others_are_not_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    everything = {
        one.variable: one.default or "1"
        for settings_class in (GatewaySettings, DraftSettings, TargetSettings, VerifierSettings)
        for one in described(settings_class)
    }
    for settings_class in (GatewaySettings, DraftSettings, TargetSettings):
        own = {one.variable for one in described(settings_class)}
        with monkeypatch.context() as patch:
            patch.setenv("SEMSPEC_GATEWAY_AUTH", "none")
            patch.setenv("SEMSPEC_DRAFT_MODEL", "m")
            patch.setenv("SEMSPEC_TARGET_MODEL", "m")
            for name in everything.keys() - own:
                patch.setenv(name, everything[name])
            patch.setenv("SEMSPEC_LOG_LEVEL", "DEBUG")
            patch.setenv("SEMSPEC_SERVICE_TOKEN", "secret")
            settings = read_settings(settings_class)
        assert settings.log_level == "DEBUG" and settings.service_token == SecretStr("secret")


def test_draft_service_serves_a_model_or_a_datastore_or_both(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("SEMSPEC_DRAFT_MODEL", "")
    line = complaint(DraftSettings, capsys)
    assert "SEMSPEC_DRAFT_DATASTORE: " in line and "set SEMSPEC_DRAFT_MODEL, to a directory or Hugging Face id" in line
    monkeypatch.setenv("SEMSPEC_DRAFT_DATASTORE", str(tmp_path))
    settings = load_settings(DraftSettings)
    assert (settings.model, settings.datastore) == ("", tmp_path)


def test_every_problem_is_named_at_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SEMSPEC_VERIFIER_DRAFT_PROBE", "/no/such.safetensors")
    line = complaint(VerifierSettings, capsys)
    assert "SEMSPEC_VERIFIER_DRAFT_PROBE" in line
    assert "SEMSPEC_VERIFIER_TARGET_PROBE" in line


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("SEMSPEC_TLS_KEY", b"/no\nsuch\x1b[31m", r"cannot read /no\nsuch\u001b[31m: No such file"),
        ("SEMSPEC_TLS_KEY", b"/" + b"a" * 5000, "File name too long"),
        ("SEMSPEC_DRAFT_DATASTORE", b"/" + b"a" * 5000, "File name too long"),
        ("SEMSPEC_DRAFT_DATASTORE", b"/\xff", "its value is not UTF-8"),
        ("SEMSPEC_SERVICE_TOKEN", b"\xff", "its value is not UTF-8"),
        (r"SEMSPEC_DRAFT_MO\nDEL", b"x", "no such setting, did you mean SEMSPEC_DRAFT_MODEL?"),
    ],
)
def test_line_has_no_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, value: bytes, words: str
) -> None:
    monkeypatch.setenv("SEMSPEC_DRAFT_MODEL", "m")
    if name.endswith("TLS_KEY"):
        monkeypatch.setenv("SEMSPEC_TLS_CERTIFICATE", os.fsdecode(value))
    monkeypatch.setenv(name.replace(r"\n", "\n"), os.fsdecode(value))
    line = complaint(DraftSettings, capsys)
    assert f"{name}: " in line and words in line and line.isprintable()


def test_token_is_never_repeated(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SEMSPEC_DRAFT_MODEL", "m")
    monkeypatch.setenv("SEMSPEC_SERVICE_TOKEN", "hush")
    monkeypatch.setenv("SEMSPEC_DRAFT_PORT", "none")
    assert "hush" not in complaint(DraftSettings, capsys)
    monkeypatch.delenv("SEMSPEC_DRAFT_PORT")
    assert "hush" not in repr(load_settings(DraftSettings))


def test_probes_are_files_and_alternatives_a_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    probe = tmp_path / "probe.safetensors"
    probe.touch()
    for name in ("DRAFT_PROBE", "TARGET_PROBE", "ALTERNATIVES"):
        monkeypatch.setenv(f"SEMSPEC_VERIFIER_{name}", str(probe))
    assert "NAME/{draft,target}.safetensors" in complaint(VerifierSettings, capsys)
    monkeypatch.setenv("SEMSPEC_VERIFIER_ALTERNATIVES", str(tmp_path))
    settings = load_settings(VerifierSettings)
    assert (settings.draft_probe, settings.alternatives) == (probe, tmp_path)
