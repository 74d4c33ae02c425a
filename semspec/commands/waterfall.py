"""A generation's trace as a self-contained HTML page: a time line with a bar for each stage."""

from collections.abc import Iterator
from html import escape
from importlib.resources import files
from string import Template

from semspec.commands.records import STAGES, Json, judgement, mark_of, one_line, stage_ms, total_ms

NUM_TICKS = 5


def page(generation: Json, trace: Json) -> str:
    """The HTML page, without scripts. All text from models and clients is escaped."""
    records = trace["segments"]
    end_ms = sum(map(total_ms, records))
    template = Template(files("semspec.commands").joinpath("waterfall.html").read_text(encoding="utf-8"))
    return template.substitute(
        id=escape(trace["id"]),
        facts="".join(_fact(name, value) for name, value in _facts(generation, trace, end_ms)),
        prompt=escape((generation.get("prompt") or {}).get("text", "")),
        ticks="".join(_tick(index / (NUM_TICKS - 1), end_ms) for index in range(NUM_TICKS)),
        rows="\n".join(_rows(records, end_ms)) or "<li>No segment was kept.</li>",
    )


def _facts(generation: Json, trace: Json, end_ms: float) -> Iterator[tuple[str, object]]:
    records, parameters = trace["segments"], generation.get("parameters") or {}
    num_judged = sum(record["verdict"] != "unjudged" for record in records)
    num_accepted = sum(record["verdict"] == "accepted" for record in records)
    yield "status", trace["status"] + (", not kept in full" if trace["degraded"] else "")
    yield "model", generation["model"]
    yield "strategy", parameters.get("strategy", "")
    yield "gamma", parameters.get("gamma", "")
    yield "seed", generation.get("seed", "")
    yield "accepted", f"{num_accepted} of {num_judged} judged"
    yield "tokens", sum(record["num_tokens"] for record in records)
    yield "waited", f"{end_ms:.0f} ms"


def _fact(name: str, value: object) -> str:
    return f"<div><dt>{escape(name)}</dt><dd>{escape(str(value))}</dd></div>"


def _tick(share: float, end_ms: float) -> str:
    return f'<span style="left:{share:.2%}">{share * end_ms:.0f} ms</span>'


def _rows(records: list[Json], end_ms: float) -> Iterator[str]:
    start_ms = 0.0
    for record in records:
        yield _row(record, start_ms, end_ms)
        start_ms += total_ms(record)


def _row(record: Json, start_ms: float, end_ms: float) -> str:
    mark, text = mark_of(record), record["text"]
    return (
        f'<li class="{mark.word.replace(" ", "-")}"><details><summary>'
        f'<span class="number">{int(record["index"])}</span>'
        f'<span class="mark">{mark.sign} {mark.word}</span>'
        f'<span class="words">{escape(one_line(text))}</span>'
        f'<span class="track">{"".join(_bars(record, start_ms, end_ms))}</span>'
        f'<span class="total">{total_ms(record):.1f} ms</span>'
        f'</summary><pre class="kept">{escape(text.strip())}</pre>{_refused(record)}'
        f'<p class="judgement">{escape(_details(record))}</p></details></li>'
    )


def _bars(record: Json, start_ms: float, end_ms: float) -> Iterator[str]:
    """One bar per stage, in sequence; the bar of `wire` is below them."""
    left_ms = start_ms
    for stage in STAGES:
        width_ms = stage_ms(record, stage)
        if stage == "wire":
            left_ms = start_ms
        if width_ms:
            place = f"left:{left_ms / end_ms:.3%};width:{width_ms / end_ms:.3%}"
            yield f'<i class="{stage}" style="{place}" title="{stage} {width_ms:.1f} ms"></i>'
        left_ms += width_ms


def _refused(record: Json) -> str:
    if not record.get("rejected"):
        return ""
    text = escape(record["rejected"]["text"].strip())
    return f'<p class="judgement">The draft had written:</p><pre class="refused">{text}</pre>'


def _details(record: Json) -> str:
    times = [f"{stage} {stage_ms(record, stage):.1f} ms" for stage in STAGES if stage_ms(record, stage) >= 0.05]
    parts = (f"{record['writer']}, {record['num_tokens']} tokens", judgement(record), "  ".join(times))
    return " · ".join(part for part in parts if part)
