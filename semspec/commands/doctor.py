"""`semspec doctor`: checks the requirements of the stack, one line per check, with a remedy for each problem."""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict

from semspec.commands.checks import Check
from semspec.commands.checks.environment import check_environment
from semspec.commands.checks.gateway import check_gateway
from semspec.commands.checks.models import check_models
from semspec.commands.checks.places import check_places
from semspec.commands.checks.probes import check_probes
from semspec.commands.options import stack_config
from semspec.commands.terminal import say


def run(arguments: argparse.Namespace) -> int:
    checks = []
    for check in all_checks(arguments):
        checks.append(check)
        if not arguments.json:
            say(line(check))
    levels = Counter(check.level for check in checks)
    if arguments.json:
        say(json.dumps({"ok": not levels["fail"], "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        say(f"\n{levels['ok']} ok, {levels['warn']} to look at, {levels['fail']} to fix")
    return 1 if levels["fail"] else 0


def all_checks(arguments: argparse.Namespace) -> Iterator[Check]:
    """The checks of this machine for the configured pair, then those of a running gateway if a URL is given."""
    config = stack_config(arguments)
    yield from check_environment()
    yield from check_models(config)
    yield from check_probes(config)
    yield from check_places(config, arguments.url)
    if arguments.url:
        yield from check_gateway(arguments.url, arguments.api_key)


def line(check: Check) -> str:
    """The check as a line of text."""
    remedy = f" -> {check.remedy}" if check.remedy else ""
    return f"{check.level:<4}  {check.name:<14}  {check.message}{remedy}"
