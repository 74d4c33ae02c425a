"""`semspec trace`: the trace of a generation as a table or JSON."""

import argparse
import asyncio
import json
from contextlib import aclosing

from rich.console import Console
from rich.table import Table
from rich.text import Text

from semspec.client import Gateway, Json
from semspec.commands.records import STAGES, mark_of, one_line, stage_ms

WIDTH_WITHOUT_TERMINAL = 160


def run(arguments: argparse.Namespace) -> int:
    generation, trace = asyncio.run(_fetched(arguments))
    if arguments.json:
        print(json.dumps({"generation": generation, "trace": trace}, indent=2))
    else:
        console = Console(highlight=False)
        console.width = console.width if console.is_terminal else WIDTH_WITHOUT_TERMINAL
        console.print(table(generation, trace))
    return 0


async def _fetched(arguments: argparse.Namespace) -> tuple[Json, Json]:
    async with aclosing(Gateway.at(arguments.url, arguments.api_key)) as gateway:
        return await gateway.generation(arguments.id), await gateway.trace(arguments.id)


def table(generation: Json, trace: Json) -> Table:
    """One row per segment, times in milliseconds. On a narrow terminal only the text is truncated."""
    names = ("#", "", "writer", "tokens", "q", "p", "p/q", "draw", *STAGES)
    rows = [_row(record) for record in trace["segments"]]
    grid = Table(title=Text(heading(generation, trace)), title_justify="left", box=None, pad_edge=False)
    for name, *cells in zip(names, *rows, strict=False):
        width = max(len(name), *map(len, cells), 1)
        grid.add_column(name, justify="left" if name in ("", "writer") else "right", min_width=width)
    grid.add_column("text", no_wrap=True, overflow="ellipsis")
    for row in rows:
        grid.add_row(*row)
    return grid


def heading(generation: Json, trace: Json) -> str:
    """Id, status, model and strategy of the generation in one line."""
    strategy = (generation.get("parameters") or {}).get("strategy", "")
    parts = [trace["id"], trace["status"], generation["model"], strategy, f"{len(trace['segments'])} segments"]
    return " · ".join(part for part in [*parts, "degraded" if trace["degraded"] else ""] if part)


def _row(record: Json) -> list[Text]:
    mark = mark_of(record)
    judged = [_number(record.get(name)) for name in ("draft_probability", "target_probability", "ratio", "draw")]
    times = [f"{stage_ms(record, stage):.1f}" for stage in STAGES]
    cells = [record["writer"], str(record["num_tokens"]), *judged, *times, one_line(record["text"])]
    return [Text(str(record["index"])), Text(mark.sign, mark.colour), *map(Text, cells)]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
