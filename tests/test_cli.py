"""The command `semspec` and what other packages add to it."""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from semspec import cli, installation
from semspec.stack import BUNDLED_PAIR
from semspec.training import cli as training_cli
from semspec_bench import cli as bench_cli
from tests.commands.support import command
from tests.helpers.hub import serving

pytestmark = pytest.mark.slow
ROOT = Path(cli.__file__).resolve().parents[1]


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    assert "{chat,doctor,health,key,pairs,plan,serve,bench,train}" in capsys.readouterr().out


def helps(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The text of `--help` of a command and of all below it."""
    yield parser.format_help()
    for action in parser._actions:
        for below in (
            action.choices.values() if isinstance(action, argparse._SubParsersAction) else ()
        ):
            yield from helps(below)


def test_every_command_of_the_tree_helps_in_its_own_words() -> None:
    trees = [*map(helps, (cli.parser([]), training_cli.parser(), bench_cli.parser()))]
    texts = [text.partition("\n\n")[2] for tree in trees for text in tree]
    assert len(texts) == len(set(texts)) > 20


@pytest.mark.parametrize(
    ("module", "words", "extra"),
    [("pyarrow", ["train", "status"], "training"), ("httpx", ["chat", "hello"], "cli")],
)
def test_command_without_its_extra_says_what_to_install(
    module: str, words: list[str], extra: str
) -> None:
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
    assert line.startswith(f"semspec {words[0]}: ") and line.endswith(
        f"--editable '{ROOT}[{extra}]'"
    )


def test_install_command_names_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "__file__", str(tmp_path / "semspec" / "installation.py"))
    assert (
        installation.install_command("serve") == "pip install '.[serve]' in a checkout of semspec"
    )


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
        assert (
            lines[name].startswith("fail")
            and f"torch is not installed -> {sys.executable} -m pip" in lines[name]
        )
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


def test_serve_says_at_once_that_the_hub_is_out_of_reach(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "HF_ENDPOINT": "http://127.0.0.1:1",
        "HF_HOME": str(tmp_path),
        "HF_HUB_OFFLINE": "0",
    }
    words = command(["serve", "--draft-model", "Qwen/Qwen3-0.6B"])
    result = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=20)
    [line] = result.stderr.splitlines()
    assert (
        "hf download Qwen/Qwen3-0.6B --local-dir FOLDER" in line
        and not result.stdout
        and result.returncode == 1
    )


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
