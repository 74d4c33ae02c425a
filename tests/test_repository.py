"""Rules that hold for the repository as a whole, beside those of `make lint`."""

import ast
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("semspec", "services", "gateway", "benchmarks", "examples")
PICKLES = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}


def imported(path: Path) -> set[str]:
    """Top-level names of everything a file imports, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def test_nothing_imports_pickle() -> None:
    paths = [path for folder in (*PACKAGES, "tests") for path in (ROOT / folder).rglob("*.py")]
    assert paths
    assert {str(path) for path in paths if imported(path) & PICKLES} == set()


def test_constraints_are_plain_pins_of_every_dependency() -> None:
    lines = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in lines}
    assert all(line.count("==") == 1 and "+" not in line and ";" not in line for line in lines)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    names = {name.split("[")[0].split(">")[0].split("=")[0] for name in wanted} - {
        "semspec",
        "vllm",
    }
    assert names <= pinned  # vLLM has pins of its own, and an environment of its own


def test_gateway_extra_has_no_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = " ".join([*project["dependencies"], *project["optional-dependencies"]["gateway"]])
    assert not any(heavy in names for heavy in ("torch", "transformers", "numpy", "engine"))
