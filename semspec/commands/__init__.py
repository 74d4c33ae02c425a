"""The commands of `semspec`, one module each with `run(arguments) -> int`; their options are in `options`."""

import shutil
import sys
from pathlib import Path

INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells."""
BUNDLED = "semspec-demo"
"""Name of the bundled pair's release in the API."""
EXAMPLE = (
    "Style 1. Ivy passes to Finn. Finn passes to Hugo. Kate passes to Ivy. Leo passes to Bea. Fay passes to Kate."
    " Bea passes to Hana. Hana passes to Fay. Hugo passes to Leo. Cards: Hana 65, Hugo 22, Finn 77, Leo 49, Ivy "
    "55, Bea 88, Kate 37, Fay 19. The ball starts with Hugo. Round 1: 1 pass. Round 2: 4 passes. Round 3: 2 "
    "passes. Round 4: 1 pass. Round 5: 1 pass. Round 6: 1 pass. Which card has the ball at the end?"
)
"""A question of the kind that the bundled pair answers."""
BAD_VERDICT = (
    "compare answers with those of the strategy 'target' before you rely on them, or train on more questions "
    "(`semspec train run`)"
)
"""Remedy for probes that are not good enough to serve."""
KNOWN = (
    "The bundled pair knows one kind of question, a ball that is passed on in a ring of eight or nine, worded as in "
    "the example; to any other it says so."
)


def program() -> str:
    """Return the command `semspec` as a shell here can run it: with its path, unless the PATH leads to it."""
    installed = Path(sys.executable).with_name("semspec")
    return (
        str(installed)
        if installed.exists() and shutil.which("semspec") != str(installed)
        else "semspec"
    )
