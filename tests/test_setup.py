"""Set-up of environments, walked through with an interpreter that records what it is asked to install."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = ("Makefile", "constraints.txt", "pyproject.toml", "scripts/setup")
INTERPRETER = """\
#!/bin/sh
case "$*" in
"-c import sys"*) echo {version} ;;
"-m venv"*)
    rm -rf .venv
    mkdir -p .venv/bin .venv/lib/python3.11/site-packages/pip.dist-info
    cp "$0" .venv/bin/python
    echo "executable = $0" > .venv/pyvenv.cfg
    echo "$0 $*" >> installed.txt
    ;;
"-m pip"*)
    echo "$0 $*" >> installed.txt
    [ -e no-network ] && exit 1
    case "$*" in *--editable*) cp "$0" .venv/bin/semspec ;; esac
    ;;
esac
exit 0
"""
"""Stands for Python: it makes environments that hold itself, and installs nothing."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a checkout with the files that set-up reads, and an interpreter `python3` in `bin/`."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    save_interpreter(tmp_path / "bin" / "python3", "3.11")
    return tmp_path


def save_interpreter(path: Path, version: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(INTERPRETER.replace("{version}", version))
    path.chmod(0o755)


def run(command: str, checkout: Path) -> subprocess.CompletedProcess[str]:
    kept = {
        name: value for name, value in os.environ.items() if name not in ("PYTHON", "TORCH_VARIANT")
    }
    environment = {**kept, "PATH": f"{checkout}/bin:{os.environ['PATH']}", "MAKEFLAGS": ""}
    return subprocess.run(
        ["sh", "-c", command], cwd=checkout, env=environment, capture_output=True, text=True
    )


def passed(command: str, checkout: Path) -> list[str]:
    """Run a command that succeeds; return what all commands have installed so far."""
    done = run(command, checkout)
    assert done.returncode == 0, done.stderr
    return installed(checkout)


def installed(checkout: Path) -> list[str]:
    record = checkout / "installed.txt"
    return record.read_text().splitlines() if record.exists() else []


@pytest.mark.parametrize(
    "target", ["setup", "demo", "serve", "test", "bench", "bench-gpu", "reproduce"]
)
def test_target_keeps_variant_and_interpreter_of_environment(target: str, checkout: Path) -> None:
    save_interpreter(checkout / "bin" / "python3.12", "3.12")
    before = passed("make setup TORCH_VARIANT=cuda PYTHON=python3.12", checkout)
    assert passed(f"make {target}", checkout) == before


def test_interrupted_setup_continues_with_its_variant(checkout: Path) -> None:
    (checkout / "no-network").touch()
    assert run("make setup TORCH_VARIANT=cuda", checkout).returncode != 0
    (checkout / "no-network").unlink()
    torch = passed("make setup", checkout)[-2]
    assert "torch===" in torch and "+cpu" not in torch


def test_upgraded_environment_keeps_its_variant(checkout: Path) -> None:
    before = passed("make setup TORCH_VARIANT=cuda", checkout)
    with (checkout / "constraints.txt").open("a") as file:
        file.write("another==1.0\n")
    torch, others = passed("make setup", checkout)[len(before) :]
    assert "torch===" in torch and "vllm" in others


@pytest.mark.parametrize(("variant", "other"), [("cuda", "cpu"), ("cpu", "cuda")])
def test_other_variant_makes_environment_anew(variant: str, other: str, checkout: Path) -> None:
    before = passed(f"make setup TORCH_VARIANT={variant}", checkout)
    made, torch, *_ = passed(f"make setup TORCH_VARIANT={other}", checkout)[len(before) :]
    assert "-m venv --clear" in made and ("===" in torch) == (other == "cuda")


def test_cpu_environment_has_every_pin_and_no_vllm(checkout: Path) -> None:
    *_, packages = passed("make setup", checkout)
    assert "--constraint constraints.txt" in packages and "vllm" not in packages


@pytest.mark.parametrize("target", ["reproduce", "bench-gpu"])
def test_gpu_target_without_environment_names_the_command(target: str, checkout: Path) -> None:
    done = run(f"make {target}", checkout)
    assert done.returncode != 0 and not installed(checkout)
    assert done.stderr.splitlines()[0] == (
        "there is no environment in .venv; make one with: make setup TORCH_VARIANT=cuda"
    )
