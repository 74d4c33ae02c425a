"""The wheel: what it contains, and that it serves the bundled pair outside the checkout."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.commands.support import ANSWER, CERTAIN, QUESTION, Live

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    "semspec",
    "gateway/semspec_gateway",
    "services/draft/semspec_draft",
    "services/target/semspec_target",
    "services/verifier/semspec_verifier",
    "benchmarks/semspec_bench",
    "examples/demo/semspec_demo",
)
NO_SOURCES = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist")


def environment() -> dict[str, str]:
    """Ours, without what leads to the checkout or to other servers."""
    return {
        name: value
        for name, value in os.environ.items()
        if not re.match("PYTHON|REDIS_URL|SEMSPEC_", name)
    }


def run(*words: str | Path, cwd: Path) -> str:
    result = subprocess.run(
        words, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the sources, so that nothing is written into the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, folder / "sources", ignore=NO_SOURCES, symlinks=True)
    options = ("--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", folder)
    run(sys.executable, "-m", "pip", "wheel", *options, folder / "sources", cwd=folder)
    [path] = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """The `bin` of a new environment: the wheel, and the packages of ours without its editable semspec."""
    folder = wheel.parent / "venv"
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--no-deps",
        "--no-index",
        wheel,
        cwd=wheel.parent,
    )
    [packages] = folder.glob("lib/python*/site-packages")
    ours = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    (packages / "ours.pth").write_text("\n".join(ours))  # .pth files in these folders are not read
    return folder / "bin"


@pytest.fixture(scope="module")
def served(installed: Path) -> Iterator[Live]:
    """`semspec serve` with the pair of the wheel."""
    folder = installed.parent
    command = (installed / "semspec", "serve", "--port", "0")
    with subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout
            shown = {}
            for line in process.stdout:
                name, _, value = line.strip().partition("  ")
                shown[name] = value
                if name == "API key":
                    break
            yield Live(f"http://{shown['gateway']}", shown["API key"])
        finally:
            process.terminate()


def test_wheel_has_every_file_of_the_packages_but_results_and_dockerfiles(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == {name for package in PACKAGES for name in packed(package)}
    assert {
        "semspec_demo/pair/draft/model.safetensors",
        "semspec_demo/pair/probes/pair.json",
    } <= names
    assert not [name for name in names if {"results", "tests"} & {*name.split("/")}]


def packed(package: str) -> Iterator[str]:
    """Return the names of a package's files in the wheel."""
    for path in (ROOT / package).rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield str(path.relative_to((ROOT / package).parent))


def test_installed_names_are_those_of_the_wheel(installed: Path) -> None:
    program = """
from importlib.util import find_spec
import semspec, semspec_bench, semspec_gateway
print(*filter(find_spec, ("gateway", "services", "training", "benchmarks", "examples")), sep="\\n")
print(semspec.__file__)
print(semspec_gateway.__file__)
"""
    *generic, library, gateway = run(
        installed / "python", "-c", program, cwd=installed
    ).splitlines()
    assert generic in ([], [""])
    assert all(Path(path).is_relative_to(installed.parent) for path in (library, gateway))


@pytest.mark.parametrize(("options", "answer"), [(CERTAIN, ANSWER), (("--seed", "5"), "\\boxed{")])
def test_installed_semspec_serves_the_pair_and_chats(
    options: tuple[str, ...], answer: str, served: Live, installed: Path
) -> None:
    text = run(installed / "semspec", "chat", *served.options, *options, QUESTION, cwd=installed)
    assert answer in text
