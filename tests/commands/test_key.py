"""`semspec key`: what it prints is what a gateway takes."""

import pytest

from semspec.keys import Keys
from tests.commands.support import exit_code


def printed(capsys: pytest.CaptureFixture[str], name: str) -> tuple[str, str]:
    """Key and entry."""
    assert exit_code("key", name) == 0
    lines = capsys.readouterr().out.splitlines()
    return lines[0].removeprefix("key    "), lines[1].removeprefix("entry  ")


def test_entry_lets_a_gateway_know_the_key(capsys: pytest.CaptureFixture[str]) -> None:
    key, entry = printed(capsys, "alice")
    assert key.startswith("sk-") and len(key) == len("sk-") + 43, "256 bits in base64"
    assert Keys(entry, None).owner(key.encode()) == "alice" and key not in entry
    assert Keys(entry, None).owner(f"{key}x".encode()) is None


def test_no_key_is_made_twice(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "alice") != printed(capsys, "alice")


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a/b", "é", "a" * 65])
def test_name_that_is_none_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("key", name) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("semspec key: the name of a key is 1 to 64 letters, digits")


@pytest.mark.parametrize(
    "key", ["sk-\nx", "sk x", "\u043a\u043b\u044e\u0447", "sk-\x7f", "k" * 5000, " sk-x"]
)
@pytest.mark.parametrize("command", [["serve"], ["chat", "Hello"], ["doctor"]])
def test_key_that_no_header_can_carry_is_refused_in_one_line(
    key: str,
    command: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SEMSPEC_API_KEY", key)
    assert exit_code(*command) in (1, 2)
    told = capsys.readouterr().err.splitlines()[-1]
    assert "SEMSPEC_API_KEY" in told and key not in told
