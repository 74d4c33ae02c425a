"""Settings: what an operator may write, and what a mistake says."""

import os
from pathlib import Path
from typing import Protocol

import pytest
from pydantic import SecretStr
from pydantic_settings import BaseSettings

from semspec.settings import described, load_settings, read_settings
from semspec_draft.settings import DraftSettings
from semspec_gateway.settings import GatewaySettings
from semspec_target.settings import TargetSettings
from semspec_verifier.settings import VerifierSettings
from tests.helpers.certificates import Authority


class Complaint(Protocol):
    """Sets variables; what the process then ends with, which must be one printable line."""

    def __call__(
        self, settings_class: type[BaseSettings], **variables: str | bytes | Path
    ) -> str: ...


@pytest.fixture
def complaint(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Complaint:
    def complain(settings_class: type[BaseSettings], **variables: str | bytes | Path) -> str:
        for name, value in ({"SEMSPEC_DRAFT_MODEL": "m"} | variables).items():
            monkeypatch.setenv(name, os.fsdecode(value))
        with pytest.raises(SystemExit) as end:
            load_settings(settings_class)
        assert end.value.code == 2
        [line] = capsys.readouterr().err.splitlines()
        assert line.isprintable()
        return line

    return complain


@pytest.fixture(autouse=True)
def _only_own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("SEMSPEC_"):
            monkeypatch.delenv(name)


def test_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMSPEC_DRAFT_MODEL", "m")
    monkeypatch.setenv("SEMSPEC_SERVICE_TOKEN", "")
    monkeypatch.setenv("SEMSPEC_DRAFT_MAX_CONTEXT_TOKENS", "")
    assert load_settings(DraftSettings).service_token is None


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("SEMSPEC_DRAFT_PORT", "tcp://10.0.0.1:50051", "0 picks a free one"),
        ("SEMSPEC_DRAFT_DEVICE", "tpu", "auto, cpu, cuda or cuda:N"),
        ("SEMSPEC_DRAFT_DATASTORE", b"/" + b"a" * 5000, "File name too long"),
        ("SEMSPEC_DRAFT_DATASTORE", b"/\xff", "its value is not UTF-8"),
        ("SEMSPEC_SERVICE_TOKEN", b"\xff", "its value is not UTF-8"),
        (r"SEMSPEC_DRAFT_MO\nDEL", "x", "no such setting, did you mean SEMSPEC_DRAFT_MODEL?"),
    ],
)
def test_bad_value_ends_the_process_with_one_printable_line(
    name: str, value: str | bytes, words: str, complaint: Complaint
) -> None:
    line = complaint(DraftSettings, **{name.replace(r"\n", "\n"): value})
    assert f"{name}: " in line and words in line


@pytest.mark.parametrize(
    ("name", "now"),
    [
        ("SEMSPEC_GATEWAY_TOKEN", "SEMSPEC_SERVICE_TOKEN"),
        ("SEMSPEC_GATEWAY_AUDIT_SHARE", "SEMSPEC_GATEWAY_AUDIT"),
    ],
)
def test_former_or_misspelt_name_is_refused_with_the_present_one(
    name: str, now: str, complaint: Complaint
) -> None:
    assert complaint(GatewaySettings, **{name: "1"}).endswith(
        f"{name}: no such setting, did you mean {now}?"
    )


@pytest.mark.parametrize(
    ("variables", "named", "remedy"),
    [
        ({"CERTIFICATE": "good.crt"}, "KEY", "the key is missing"),
        (
            {"CERTIFICATE": "good.crt", "KEY": "other.key"},
            "KEY",
            "not a PEM certificate and its key",
        ),
        ({"CERTIFICATE": "good.crt", "KEY": "locked.key"}, "KEY", "has a password"),
        (
            {"CERTIFICATE": "/no\nsuch\x1b[31m", "KEY": "good.key"},
            "KEY",
            r"cannot read /no\nsuch\u001b[31m:",
        ),
        ({"CLIENT_CA": "ca.pem"}, "CLIENT_CA", "require TLS"),
        (
            {"CERTIFICATE": "good.crt", "KEY": "good.key", "CLIENT_CA": "junk"},
            "CLIENT_CA",
            "does not contain a PEM certificate",
        ),
    ],
)
def test_certificate_of_no_use_ends_the_process_with_one_line(
    variables: dict[str, str], named: str, remedy: str, tmp_path: Path, complaint: Complaint
) -> None:
    authority = Authority(tmp_path)
    folder = authority.file.parent
    for name in ("good", "other"):
        pair = authority.issue(name)
        pair.certificate.rename(folder / f"{name}.crt")
        pair.key.rename(folder / f"{name}.key")
    (folder / "junk").write_text("nothing of use\n")
    (folder / "locked.key").write_bytes(locked((folder / "good.key").read_bytes()))
    line = complaint(
        DraftSettings, **{f"SEMSPEC_TLS_{name}": folder / file for name, file in variables.items()}
    )
    assert f"SEMSPEC_TLS_{named}: " in line and remedy in line


def locked(key: bytes) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return serialization.load_pem_private_key(key, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.BestAvailableEncryption(b"hush"),
    )


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
    monkeypatch: pytest.MonkeyPatch, complaint: Complaint, tmp_path: Path
) -> None:
    line = complaint(DraftSettings, SEMSPEC_DRAFT_MODEL="")
    assert "SEMSPEC_DRAFT_DATASTORE: " in line
    assert "set SEMSPEC_DRAFT_MODEL, to a directory or Hugging Face id" in line
    monkeypatch.setenv("SEMSPEC_DRAFT_DATASTORE", str(tmp_path))
    settings = load_settings(DraftSettings)
    assert (settings.model, settings.datastore) == ("", tmp_path)


def test_every_problem_is_named_at_once(complaint: Complaint) -> None:
    line = complaint(VerifierSettings, SEMSPEC_VERIFIER_PAIR="/no/such")
    assert "SEMSPEC_VERIFIER_PAIR" in line


def test_token_is_never_repeated(monkeypatch: pytest.MonkeyPatch, complaint: Complaint) -> None:
    assert "hush" not in complaint(
        DraftSettings, SEMSPEC_SERVICE_TOKEN="hush", SEMSPEC_DRAFT_PORT="none"
    )
    monkeypatch.delenv("SEMSPEC_DRAFT_PORT")
    assert "hush" not in repr(load_settings(DraftSettings))
