"""The shell command that installs what is missing. Nothing is published on a package index yet."""

import shlex
import sys
from pathlib import Path


def install_command(extra: str) -> str:
    """Return the command that adds an extra of this package to the running environment, from the checkout it runs from.

    Without a checkout, as in an environment with the wheel, the command is one for a checkout.
    """
    root = Path(__file__).resolve().parents[1]
    if not (root / "pyproject.toml").is_file():
        return f"pip install '.[{extra}]' in a checkout of semspec"
    return shlex.join([sys.executable, "-m", "pip", "install", "--editable", f"{root}[{extra}]"])
