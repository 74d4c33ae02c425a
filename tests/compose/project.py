"""The stack in real containers, brought up from this tree and taken down without a trace."""

import os
import secrets
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from semspec.keys import entry, new_key
from tests.compose.support import BASE
from tests.helpers.processes import succeeds

BASE_IMAGE = "python:3.11-slim-bookworm"
REDIS_IMAGE = "redis:7.4-alpine"
WHEELS_PORT = 8931
"""Always the same, so that the build's cache holds."""
READY_WITHIN_S = 300

KILL = (
    "import os, sys; print('armed', flush=True); sys.stdin.readline(); os.kill(int(sys.argv[1]), 9)"
)


@dataclass(frozen=True, slots=True)
class Project:
    """The containers of one compose project."""

    name: str
    key: str
    env_file: Path
    environment: dict[str, str]

    @property
    def url(self) -> str:
        return f"http://{self.compose('port', 'gateway', '8080').strip()}"

    def compose(self, *words: str) -> str:
        command = (
            "docker",
            "compose",
            "--project-name",
            self.name,
            "--env-file",
            str(self.env_file),
        )
        return run(*command, "--file", str(BASE), *words, environment=self.environment)

    def container(self, role: str) -> str:
        return self.compose("ps", "--all", "--quiet", role).strip()

    def inspect(self, role: str, template: str) -> str:
        return run("docker", "inspect", "--format", template, self.container(role)).strip()

    def image(self, role: str) -> str:
        return self.inspect(role, "{{.Config.Image}}")

    def inside(self, role: str, *command: str) -> subprocess.CompletedProcess[str]:
        """A command in a service's container, as the service's user."""
        return subprocess.run(
            ["docker", "exec", self.container(role), *command], capture_output=True, text=True
        )

    @contextmanager
    def armed(self, role: str) -> Iterator["subprocess.Popen[str]"]:
        """One line to it, and the service's process gets SIGKILL: not `docker kill`, after which nobody restarts it."""
        helper = "docker run --rm --interactive --pid=host --user=0 --network=none --entrypoint=python".split()
        victim = self.inspect(role, "{{.State.Pid}}")
        command = [*helper, self.image("gateway"), "-c", KILL, victim]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout and process.stdout.readline() == "armed\n"
            yield process


def run(*command: str, environment: dict[str, str] | None = None) -> str:
    """What the command writes to stdout. Raises: AssertionError with its stderr when it fails."""
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **(environment or {})}
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr[-4000:]}"
    return done.stdout


def why_not() -> str | None:
    """Why there can be no project here; None if there can."""
    has_both = succeeds("docker", "version") and succeeds("docker", "compose", "version")
    return None if has_both else "no Docker engine answers, or it has no compose"


@contextmanager
def running(folder: Path) -> Iterator[Project]:
    """The stack on the bundled pair, its images built; gone at the end, volumes included."""
    name, key, env_file = f"semspec-test-{secrets.token_hex(3)}", new_key(), folder / "env"
    variables = {
        "SEMSPEC_GATEWAY_API_KEYS": entry("me", key),
        "SEMSPEC_SERVICE_TOKEN": secrets.token_hex(32),
        "SEMSPEC_REDIS_PASSWORD": secrets.token_hex(32),
        "SEMSPEC_PUBLISH": "127.0.0.1:",  # on a free port
    }
    env_file.write_text("".join(f"{name}={value}\n" for name, value in variables.items()))
    with served_wheels() as arguments:
        project = Project(name, key, env_file, {"REDIS_IMAGE": _redis_image(), **arguments})
        project.compose("build")
    try:
        project.compose("up", "--detach", "--wait", "--wait-timeout", str(READY_WITHIN_S))
        yield project
    finally:
        project.compose("down", "--volumes", "--timeout", "5")


@contextmanager
def served_wheels() -> Iterator[dict[str, str]]:
    """The build's arguments with which it finds the wheels of a local PIP_FIND_LINKS, as on a machine without PyPI."""
    folder = Path(os.environ.get("PIP_FIND_LINKS") or "/nowhere")
    if not folder.is_dir():
        yield {}
        return
    host = run(
        "docker", "network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Gateway}}"
    ).strip()
    with ThreadingHTTPServer(
        (host, WHEELS_PORT), partial(SimpleHTTPRequestHandler, directory=str(folder))
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield {"PIP_FIND_LINKS": f"http://{host}:{WHEELS_PORT}/", "PIP_TRUSTED_HOST": host}
        finally:
            server.shutdown()


def _redis_image() -> str:
    """Redis' own image, or one made of the distribution's package where no registry is within reach."""
    if succeeds("docker", "image", "inspect", REDIS_IMAGE) or succeeds(
        "docker", "pull", "--quiet", REDIS_IMAGE
    ):
        return REDIS_IMAGE
    install = (
        "apt-get update && apt-get install --yes redis-server && install -d -o 999 -g 1000 /data"
    )
    subprocess.run(
        ["docker", "build", "--quiet", "--tag", "semspec-test-redis", "-"],
        input=f"FROM {BASE_IMAGE}\nRUN {install}\n",
        text=True,
        check=True,
        capture_output=True,
    )
    return "semspec-test-redis"
