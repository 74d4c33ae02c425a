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
from semspec.commands.checks.settings import check_pair, check_settings
from semspec.commands.options import stack_config
from semspec.commands.terminal import say
from semspec.stack import StackConfig


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
    yield from checks_of(stack_config(arguments), arguments.url)
    if arguments.url:
        yield from check_gateway(arguments.url, arguments.api_key)


def checks_of(config: StackConfig, gateway_url: str | None = None) -> Iterator[Check]:
    """The checks of this machine for a configuration: none fails exactly if `Stack(config)` comes up.

    `gateway_url`: of a gateway that runs already; see `check_places`.
    """
    found = []
    for check in _single_checks(config, gateway_url):
        found.append(check)
        yield check
    if any(check.level == "fail" for check in found):
        return  # whether things belong together is asked when each is right by itself
    settings = list(check_settings(config, (*config.roles[2:], "gateway")))
    yield from settings
    if not any(check.level == "fail" for check in settings):
        yield from check_pair(config)


def _single_checks(config: StackConfig, gateway_url: str | None) -> Iterator[Check]:
    """Each thing by itself."""
    yield from check_environment()
    yield from check_models(config)
    yield from check_settings(config, ("draft", "target"))
    yield from check_probes(config)
    yield from check_places(config, gateway_url)


def line(check: Check) -> str:
    """The check as a line of text."""
    remedy = f" -> {check.remedy}" if check.remedy else ""
    return f"{check.level:<4}  {check.name:<14}  {check.message}{remedy}"
