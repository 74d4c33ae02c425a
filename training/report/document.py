"""A report's contents, rendered as Markdown and as one HTML page."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from semspec.training.files import replacing
from semspec.training.report.drawing import Picture


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph; `code` between backticks."""

    text: str


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list of sentences."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Cells of plain text; the first one of each row is its name."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def as_markdown(self) -> str:
        """The table in Markdown, without blank lines, so that a page that includes it can find its end."""
        lines = [self.header, ("---",) * len(self.header), *self.rows]
        return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


@dataclass(frozen=True, slots=True)
class Code:
    """Commands or verbatim text."""

    lines: tuple[str, ...]


Block = Text | Bullets | Table | Code | Picture
Tone = Literal["good", "doubtful", "bad"]


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    """Empty: no heading."""
    blocks: Sequence[Block]
    level: int = 2
    """Level of the heading; 1 is the page's title."""
    is_folded: bool = False
    """On the HTML page only the heading shows until it is opened."""
    tone: Tone | None = None
    """Colour of a verdict."""


def as_markdown(title: str, sections: Iterable[Section]) -> str:
    """The page in GitHub's Markdown; its pictures are separate files."""
    parts = [f"# {_text(title)}\n"]
    for section in sections:
        parts += [f"{'#' * section.level} {_text(section.title)}\n"] if section.title else []
        parts += [_RENDERERS[type(block)](block) for block in section.blocks]
    return "\n".join(parts)


def as_html(title: str, sections: Sequence[Section]) -> str:
    """A self-contained HTML page with embedded pictures. All text is escaped."""
    environment = Environment(
        loader=PackageLoader("semspec.training.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"inline": _inline, "kind": lambda block: type(block).__name__}
    return environment.get_template("page.html.j2").render(title=title, sections=sections)


def write_text(path: Path, text: str) -> None:
    """Write a file atomically."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_pictures(folder: Path, sections: Iterable[Section]) -> None:
    """Write a PNG file for each picture in the sections."""
    for picture in (
        block for section in sections for block in section.blocks if isinstance(block, Picture)
    ):
        with replacing(folder / f"{picture.name}.png") as partial:
            partial.write_bytes(picture.png)


_TAG = re.compile(r"<(?=[a-zA-Z/!?])")


def _inline(text: str) -> Markup:
    """`text` in HTML, with `code` elements; it is escaped first, so it cannot contain other tags."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))


def _text(text: str) -> str:
    """`text` with tags escaped outside code, where GitHub would interpret them."""
    parts = text.split("`")
    return "`".join(
        part if index % 2 else _TAG.sub("&lt;", part) for index, part in enumerate(parts)
    )


def _cell(text: str) -> str:
    return _text(" ".join(text.split())).replace("|", "\\|")


def _picture(picture: Picture) -> str:
    alt = picture.alt.replace("[", "(").replace("]", ")")
    return f"**{_text(picture.title)}**\n\n![{_text(alt)}]({picture.name}.png)\n\n{_text(picture.caption)}\n"


_RENDERERS: dict[type, Callable[..., str]] = {
    Text: lambda block: f"{_text(block.text)}\n",
    Bullets: lambda block: "".join(f"- {_text(item)}\n" for item in block.items),
    Table: Table.as_markdown,
    Code: lambda block: "```sh\n" + "".join(f"{line}\n" for line in block.lines) + "```\n",
    Picture: _picture,
}
