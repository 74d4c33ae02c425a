"""`semspec key`: creates an API key for a named owner."""

import argparse

from semspec.keys import entry, new_key

NEXT = """\
Give the key to its owner; it is not shown again. Add the entry to SEMSPEC_GATEWAY_API_KEYS, or as a line to the file
that SEMSPEC_GATEWAY_API_KEYS_FILE names."""


def run(arguments: argparse.Namespace) -> int:
    """Print the key and its entry. The key is shown only here: the gateway's configuration contains only its hash."""
    key = new_key()
    known = entry(arguments.name, key)
    print(f"key    {key}")
    print(f"entry  {known}")
    print(f"\n{NEXT}")
    return 0
