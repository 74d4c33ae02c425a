"""`semspec key`: a new API key for whom it is said to be for."""

import argparse

from semspec.commands.terminal import say
from semspec.keys import entry, new_key

NEXT = """\
Give the key to its owner; it is not shown again. The entry belongs into SEMSPEC_GATEWAY_API_KEYS, or on a line of the
file that SEMSPEC_GATEWAY_API_KEYS_FILE names."""


def run(arguments: argparse.Namespace) -> int:
    """The key is shown this once: the gateway's configuration holds its hash."""
    key = new_key()
    known = entry(arguments.name, key)
    say(f"key    {key}")
    say(f"entry  {known}")
    say(f"\n{NEXT}")
    return 0
