"""A report's contents, written once and set twice: as Markdown and as one HTML page."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

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
    """Cells of plain text, the first of a row is its name."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def as_markdown(self) -> str:
        """Without blank lines, so that a page that quotes it knows where it ends."""
        lines = [self.header, ("---",) * len(self.header), *self.rows]
        return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


@dataclass(frozen=True, slots=True)
class Code:
    """Commands, or text that stands as it is."""

    lines: tuple[str, ...]


Block = Text | Bullets | Table | Code | Picture


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    """Empty: no heading."""
    blocks: Sequence[Block]
    level: int = 2
    """Of its heading; 1 is the page's own."""


def as_markdown(title: str, sections: Iterable[Section]) -> str:
    """The page for GitHub; its pictures are files beside it."""
    parts = [f"# {_text(title)}\n"]
    for section in sections:
        parts += [f"{'#' * section.level} {_text(section.title)}\n"] if section.title else []
        parts += [_SETTERS[type(block)](block) for block in section.blocks]
    return "\n".join(parts)


def as_html(title: str, sections: Sequence[Section]) -> str:
    """The page, whole in itself: its pictures are inside. All text stands in it escaped."""
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
    """In one step, as all writers of reports."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_pictures(folder: Path, sections: Iterable[Section]) -> None:
    """A PNG file for each picture in the sections."""
    for picture in (block for section in sections for block in section.blocks if isinstance(block, Picture)):
        with replacing(folder / f"{picture.name}.png") as partial:
            partial.write_bytes(picture.png)


_TAG = re.compile(r"<(?=[a-zA-Z/!?])")


def _inline(text: str) -> Markup:
    """Escaped first, so that the only tags are ours."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))


def _text(text: str) -> str:
    """Escaped for Markdown outside code, where GitHub would take a tag for one."""
    parts = text.split("`")
    return "`".join(part if index % 2 else _TAG.sub("&lt;", part) for index, part in enumerate(parts))


def _cell(text: str) -> str:
    return _text(" ".join(text.split())).replace("|", "\\|")


def _picture(picture: Picture) -> str:
    alt = picture.alt.replace("[", "(").replace("]", ")")
    return f"**{_text(picture.title)}**\n\n![{_text(alt)}]({picture.name}.png)\n\n{_text(picture.caption)}\n"


_SETTERS: dict[type, Callable[..., str]] = {
    Text: lambda block: f"{_text(block.text)}\n",
    Bullets: lambda block: "".join(f"- {_text(item)}\n" for item in block.items),
    Table: Table.as_markdown,
    Code: lambda block: "```sh\n" + "".join(f"{line}\n" for line in block.lines) + "```\n",
    Picture: _picture,
}
