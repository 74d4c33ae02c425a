"""`semspec doctor`: checks the requirements of the stack, one line per check, with a remedy for each problem."""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict

from semspec.commands.checks import Check
from semspec.commands.checks.environment import check_environment
from semspec.commands.checks.places import check_network
from semspec.commands.checks.processes import check_processes
from semspec.commands.options import stack_config
from semspec.stack import StackConfig


def run(arguments: argparse.Namespace) -> int:
    checks = []
    for check in checks_of(stack_config(arguments)):
        checks.append(check)
        if not arguments.json:
            print(format_check(check), flush=True)
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
    """Yield the checks of this machine for a configuration; `Stack(config)` starts if and only if none fails."""
    yield from check_environment()
    yield from check_processes(config)
    yield from check_network(config)


def format_check(check: Check) -> str:
    """Return the check as a line of text."""
    remedy = f" -> {check.remedy}" if check.remedy else ""
    return f"{check.level:<4}  {check.name:<14}  {check.message}{remedy}"
