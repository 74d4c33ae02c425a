"""Reports as one HTML page, and tables in Markdown."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from semspec.reporting.files import replacing
from semspec.reporting.numbers import Measured, decimal, share


@dataclass(frozen=True, slots=True)
class Table:
    """Cells of plain text; the first one of each row is its name."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def as_markdown(self) -> str:
        """Return the table in GitHub's Markdown, where tags in its cells are text."""
        lines = [self.header, ("---",) * len(self.header), *self.rows]
        return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def write_page(path: Path, title: str, question: str, **data: Any) -> None:
    """Write an HTML page that needs no other file, atomically. All text is escaped.

    `data`: what the page shows, as the template names it.
    """
    loader = PackageLoader("semspec.reporting", ".")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    environment.filters |= {"inline": _inline, "decimal": _decimal, "share": _share}
    template = environment.get_template("report.html.j2")
    write_text(path, template.render(title=title, question=question, **data))


def write_text(path: Path, text: str) -> None:
    """Write a file atomically."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def _inline(text: str) -> Markup:
    """Return `text` as HTML; it is escaped before its code elements are made."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))


def _decimal(found: Mapping[str, float | None] | float | None, num_digits: int = 3) -> str:
    return decimal(Measured.of(found), num_digits)


def _share(found: Mapping[str, float | None] | float | None) -> str:
    return share(Measured.of(found))


def _cell(text: str) -> str:
    escaped = re.sub(r"<(?=[a-zA-Z/!?])", "&lt;", " ".join(text.split()))
    return escaped.replace("|", "\\|")
