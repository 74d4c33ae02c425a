"""The command `semspec`. Some commands are built in; other packages add commands as entry points `semspec.commands`."""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from semspec import __version__
from semspec.commands import INTERRUPTED, options
from semspec.errors import SemspecError
from semspec.installation import install_command

BUILT_IN: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "chat": ("ask a gateway, and watch the answer as it is written", options.chat_options),
    "doctor": ("check what `semspec serve` needs, and say what to fix", options.doctor_options),
    "health": (
        "check that a service or a gateway is serving; the exit code is 0 if it is",
        options.health_options,
    ),
    "key": ("create an API key, and its entry for the gateway's settings", options.key_options),
    "pairs": (
        "list the pairs that `serve --pair NAME` accepts, and which of their files are here",
        options.pairs_options,
    ),
    "plan": ("show which layouts of a pair fit on GPUs, and their settings", options.plan_options),
    "serve": ("run Redis, draft, target, verifier and gateway until Ctrl-C", options.serve_options),
}
"""Built-in commands: purpose and options of each."""


def main(argv: Sequence[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    added = {entry.name: entry for entry in entry_points(group="semspec.commands")}
    if argv and argv[0] in added:
        _loaded(added[argv[0]])(argv[1:])
        return
    arguments = parser(sorted(added)).parse_args(argv)
    name = arguments.command
    try:
        status = _loaded(EntryPoint(name, f"semspec.commands.{name}:run", "semspec.commands"))(
            arguments
        )
    except SemspecError as error:
        print(f"semspec {name}: {error}", file=sys.stderr)
        status = 1
    except KeyboardInterrupt:
        status = INTERRUPTED
    sys.exit(status)


def _loaded(command: EntryPoint) -> Callable[..., Any]:
    try:
        loaded: Callable[..., Any] = command.load()
    except ModuleNotFoundError as error:
        package = re.sub("^semspec[._]", "", command.module).partition(".")[0]
        extra = "cli" if package == "commands" else package
        missing = (error.name or "").partition(".")[0]
        sys.exit(f"semspec {command.name}: {missing} is not installed; {install_command(extra)}")
    return loaded


def parser(added: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="semspec", description="Semantic speculative decoding on one machine."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (purpose, add_options) in BUILT_IN.items():
        add_options(
            commands.add_parser(
                name, help=purpose, description=f"{purpose[0].upper()}{purpose[1:]}."
            )
        )
    for name in added:
        commands.add_parser(name, help=f"see `semspec {name} --help`")
    return parser


if __name__ == "__main__":
    main()
