"""`semspec doctor`: checks the requirements of the stack, one line per check, with a remedy for each problem."""

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import asdict
from functools import partial

from semspec.commands.checks import Check, attempt, warn
from semspec.commands.checks.environment import check_environment
from semspec.commands.checks.places import check_places
from semspec.commands.checks.processes import check_processes
from semspec.commands.options import stack_config
from semspec.errors import Unavailable
from semspec.stack import StackConfig

TIMEOUT_S = 4.0
"""Longest wait for a running gateway."""


def run(arguments: argparse.Namespace) -> int:
    checks = []
    running = (
        (attempt("running", partial(_running, arguments.url, arguments.api_key)),)
        if arguments.url
        else None
    )
    for check in running or checks_of(stack_config(arguments)):
        checks.append(check)
        if not arguments.json:
            print(line(check), flush=True)
    levels = Counter(check.level for check in checks)
    if arguments.json:
        print(
            json.dumps(
                {"ok": not levels["fail"], "checks": [asdict(check) for check in checks]}, indent=2
            )
        )
    else:
        print(f"\n{levels['ok']} ok, {levels['warn']} to look at, {levels['fail']} to fix")
    return 1 if levels["fail"] else 0


def checks_of(config: StackConfig) -> Iterator[Check]:
    """The checks of this machine for a configuration: none fails exactly if `Stack(config)` comes up."""
    yield from check_environment()
    yield from check_processes(config)
    yield from check_places(config)


def _running(url: str, api_key: str | None) -> Check | str:
    """What a running gateway says of itself. Raises: SemspecError."""
    from semspec.client import Gateway  # needs httpx

    async def ask() -> tuple[str, list[str]]:
        try:
            async with asyncio.timeout(TIMEOUT_S), aclosing(Gateway.at(url, api_key)) as gateway:
                return await gateway.readiness(), [model["id"] for model in await gateway.models()]
        except TimeoutError as error:
            raise Unavailable(
                f"{url} does not answer within {TIMEOUT_S:g} s",
                remedy="see that a gateway runs there",
            ) from error

    detail, models = asyncio.run(ask())
    if detail != "ready":
        return warn(
            "running", f"{url} is {detail}", "start it again; until then the gateway does without"
        )
    return f"{url} is ready and serves {', '.join(models)}"


def line(check: Check) -> str:
    """The check as a line of text."""
    remedy = f" -> {check.remedy}" if check.remedy else ""
    return f"{check.level:<4}  {check.name:<14}  {check.message}{remedy}"
