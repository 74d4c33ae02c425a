"""The tables of docs/results.md are committed files, quoted."""

import re
from pathlib import Path

from semspec.errors import InvalidRequest

_QUOTED = re.compile(r"(?<=<!-- )(\S+\.md) -->\n(?:\|[^\n]*(?:\n|\Z))*")
"""A marker line with the table right after it, if there is one already."""


_DATED = re.compile(r"bench/results/\d{4}-\d\d-\d\d(?=/)")


def readme_tables(readme: str, folder: Path, latest: Path | None = None) -> str:
    """`readme` with the table after each line `<!-- PATH.md -->` replaced by that file of `folder`; mentions of earlier
    days' results become `latest`.

    Raises: InvalidRequest when a marker names a file that is not there.
    """
    if latest is not None:
        readme = _DATED.sub(latest.as_posix(), readme)
    return _QUOTED.sub(lambda match: f"{match[1]} -->\n{_table(folder / match[1])}\n", readme)


def _table(path: Path) -> str:
    if not path.is_file():
        raise InvalidRequest(f"the page quotes {path}, which is not there; make the run or change the marker", "readme")
    return path.read_text().strip()
