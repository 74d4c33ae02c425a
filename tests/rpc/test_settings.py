"""Settings: what an operator may write, and what a mistake says."""

import os
from pathlib import Path

import pytest

from semspec.services.draft.settings import DraftSettings
from semspec.services.target.settings import TargetSettings
from semspec.services.verifier.settings import VerifierSettings
from semspec.settings import load_settings


@pytest.fixture(autouse=True)
def _only_own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("SEMSPEC_"):
            monkeypatch.delenv(name)


def complaint(settings_class: type[DraftSettings | VerifierSettings], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as exit_:
        load_settings(settings_class)
    assert exit_.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    return line


def test_defaults_need_no_more_than_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMSPEC_DRAFT_MODEL", "some/model")
    monkeypatch.setenv("SEMSPEC_TARGET_MODEL", "other/model")
    draft, target = load_settings(DraftSettings), load_settings(TargetSettings)
    assert (draft.model, draft.port, draft.device, draft.threads, draft.token) == ("some/model", 50051, "auto", 1, None)
    assert (target.model, target.port) == ("other/model", 50052)


def test_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMSPEC_DRAFT_MODEL", "m")
    monkeypatch.setenv("SEMSPEC_DRAFT_TOKEN", "")
    monkeypatch.setenv("SEMSPEC_DRAFT_MAX_CONTEXT_TOKENS", "")
    assert load_settings(DraftSettings).token is None


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
        ("SEMSPEC_DRAFT_TLS_KEY", b"/no\nsuch\x1b[31m", r"cannot read /no\nsuch\u001b[31m: No such file"),
        ("SEMSPEC_DRAFT_TLS_KEY", b"/" + b"a" * 5000, "File name too long"),
        ("SEMSPEC_DRAFT_DATASTORE", b"/" + b"a" * 5000, "File name too long"),
        ("SEMSPEC_DRAFT_DATASTORE", b"/\xff", "its value is not UTF-8"),
        ("SEMSPEC_DRAFT_TOKEN", b"\xff", "its value is not UTF-8"),
        (r"SEMSPEC_DRAFT_MO\nDEL", b"x", "no such setting, did you mean SEMSPEC_DRAFT_MODEL?"),
    ],
)
def test_line_has_no_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, value: bytes, words: str
) -> None:
    monkeypatch.setenv("SEMSPEC_DRAFT_MODEL", "m")
    if name.endswith("TLS_KEY"):
        monkeypatch.setenv("SEMSPEC_DRAFT_TLS_CERTIFICATE", os.fsdecode(value))
    monkeypatch.setenv(name.replace(r"\n", "\n"), os.fsdecode(value))
    line = complaint(DraftSettings, capsys)
    assert f"{name}: " in line and words in line and line.isprintable()


def test_token_is_never_repeated(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SEMSPEC_DRAFT_MODEL", "m")
    monkeypatch.setenv("SEMSPEC_DRAFT_TOKEN", "hush")
    monkeypatch.setenv("SEMSPEC_DRAFT_PORT", "none")
    assert "hush" not in complaint(DraftSettings, capsys)
    monkeypatch.delenv("SEMSPEC_DRAFT_PORT")
    assert "hush" not in repr(load_settings(DraftSettings))


def test_probes_are_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    probe = tmp_path / "probe.safetensors"
    probe.touch()
    monkeypatch.setenv("SEMSPEC_VERIFIER_DRAFT_PROBE", str(probe))
    monkeypatch.setenv("SEMSPEC_VERIFIER_TARGET_PROBE", str(probe))
    assert load_settings(VerifierSettings).draft_probe == probe
    assert load_settings(VerifierSettings).alternatives is None


def test_alternatives_are_a_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    probe = tmp_path / "probe.safetensors"
    probe.touch()
    for name in ("DRAFT_PROBE", "TARGET_PROBE", "ALTERNATIVES"):
        monkeypatch.setenv(f"SEMSPEC_VERIFIER_{name}", str(probe))
    assert "NAME/{draft,target}.safetensors" in complaint(VerifierSettings, capsys)
    monkeypatch.setenv("SEMSPEC_VERIFIER_ALTERNATIVES", str(tmp_path))
    assert load_settings(VerifierSettings).alternatives == tmp_path
