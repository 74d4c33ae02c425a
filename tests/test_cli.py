"""The command `semspec` and what other packages add to it."""

import os
import signal
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from semspec import cli
from semspec.stack import BUNDLED_PAIR
from tests.commands.support import command
from tests.helpers.hub import serving

pytestmark = pytest.mark.slow
ROOT = Path(cli.__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("module", "words", "extra"),
    [("pyarrow", ["train", "status"], "training"), ("httpx", ["chat", "hello"], "cli")],
)
def test_missing_extra_is_named(module: str, words: list[str], extra: str) -> None:
    result = without((module,), words)
    assert result.returncode == 1
    installs = f"{sys.executable} -m pip install --editable '{ROOT}[{extra}]'"
    assert result.stderr.strip() == f"semspec {words[0]}: {module} is not installed; {installs}"


@pytest.mark.parametrize(
    "words", [["train", "--help"], ["bench", "--help"], ["bench", "run", "--help"], ["train"]]
)
def test_command_after_the_demo_names_what_to_install(words: list[str]) -> None:
    """`make demo` installs neither training nor benchmarks."""
    result = without(("datasets", "matplotlib", "pyarrow", "scipy", "math_verify", "psutil"), words)
    [line] = result.stderr.splitlines()
    assert result.returncode == 1 and not result.stdout
    extra = {"train": "training"}.get(words[0], words[0])
    assert line.startswith(f"semspec {words[0]}: ")
    assert line.endswith(f"--editable '{ROOT}[{extra}]'")


@pytest.mark.parametrize("command", ["chat", "doctor", "health", "key", "plan", "serve"])
def test_every_own_command_helps_without_any_extra(command: str) -> None:
    result = without(("httpx", "torch", "redis"), [command, "--help"])
    assert result.returncode == 0, result.stderr
    assert f"usage: semspec {command}" in result.stdout


def test_doctor_without_torch_says_so_and_goes_on() -> None:
    result = without(("torch",), ["doctor", "--port", "0"])
    assert result.returncode == 1 and not result.stderr
    lines = {line.split()[1]: line for line in result.stdout.splitlines() if line}
    for name in ("torch", "draft"):
        assert lines[name].startswith("fail")
        assert f"torch is not installed -> {sys.executable} -m pip" in lines[name]
    assert lines["port"].startswith("ok")


def test_serve_fetches_the_pair_of_a_hub_before_it_starts(tmp_path: Path) -> None:
    models = ("--draft-model", "a/draft", "--target-model", "a/target", "--port", "0")
    with serving({f"a/{role}": BUNDLED_PAIR / role for role in ("draft", "target")}) as endpoint:
        environment = {
            **os.environ,
            "HF_ENDPOINT": endpoint,
            "HF_HOME": str(tmp_path),
            "HF_HUB_OFFLINE": "0",
        }
        words, shown = command(["serve", *models]), []
        with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            for line in process.stdout:
                shown.append(line)
                if line.startswith("Ctrl-C"):
                    process.terminate()
    assert shown[:2] == ["downloading a/draft: 1.5 MB\n", "downloading a/target: 14.9 MB\n"]
    assert process.returncode == 128 + signal.SIGTERM and "playground" in "".join(shown)


def without(modules: tuple[str, ...], words: list[str]) -> subprocess.CompletedProcess[str]:
    """The command in a Python that lacks some modules."""
    program = f"import sys; sys.modules.update(dict.fromkeys({modules})); from semspec.cli import main; main({words})"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def test_added_command_gets_the_rest_of_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("shout", "tests.test_cli:shout", "semspec.commands")
    monkeypatch.setattr(cli, "entry_points", lambda group: [entry])
    with pytest.raises(SystemExit, match="--loud x"):
        cli.main(["shout", "--loud", "x"])


def shout(arguments: list[str]) -> None:
    sys.exit(" ".join(arguments))
