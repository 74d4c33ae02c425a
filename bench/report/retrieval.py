"""Ablations of `retrieval`: what each part of it, and each number of its gate, is worth."""

from collections.abc import Iterator, Sequence

from semspec.bench.report.tables import lost, run_command
from semspec.bench.summary import Row, Run
from semspec.training.report.document import Block, Code, Table, Text
from semspec.training.report.numbers import NONE, decimal, measured_decimal

PARTS = {
    "": "all parts, exact",
    ":retrieval_source=datastore": "static part only",
    ":retrieval_source=context": "dynamic part only: prompt look-up",
    ":retrieval_source=ngrams": "no semantic neighbours",
    ":retrieval_tokens=32:retrieval_tree=on": "tree of 32 tokens",
    ":gate=soft": "soft gate",
}
"""Options of `retrieval` -> what differs. The gate `exact` is the row without a gate."""
ENTROPIES, TOP_KS = (0.02, 0.05, 0.1, 0.2), (1, 3, 5)
"""Of the table of the soft gate; SENSE (arXiv 2606.00021) calls them gamma and k, and takes 0.05 and 3."""
HEADER = ("what differs", "configuration", "tokens a step", "retrieval, share of latency", "pass@1",
          "minus target (McNemar)", "speed-up")  # fmt: skip
CELL = "tokens a step / pass@1 / speed-up"


def blocks(run: Run) -> Iterator[Block]:
    """The tables of a run with rows of `retrieval`; nothing of one without."""
    own = [row for row in run.rows if row.configuration.method == "retrieval"]
    if not own:
        return
    head = own[0].label.partition(":")[0]
    rows = {row.label.removeprefix(head): row for row in own}
    yield Text(f"`{run.name}`: parts. Tokens a step: tokens of an answer over the target's forward passes.")
    yield Table(HEADER, tuple(_cells(name, rows[knobs]) for knobs, name in PARTS.items() if knobs in rows))
    grid = {(entropy, top_k): f":gate=soft:gate_entropy={entropy:g}:gate_top_k={top_k}"
            for entropy in ENTROPIES for top_k in TOP_KS}  # fmt: skip
    if any(knobs in rows for knobs in grid.values()):
        yield Text(f"`{run.name}`: the soft gate's `gate_entropy`, down, and `gate_top_k`, across. Each cell: {CELL}.")
        header = ("gate_entropy", *(f"gate_top_k {top_k}" for top_k in TOP_KS))
        yield Table(header, tuple(
            (f"{entropy:g}", *(_cell(rows.get(grid[entropy, top_k])) for top_k in TOP_KS)) for entropy in ENTROPIES
        ))  # fmt: skip
    yield from _missing(run, [f"{head}{knobs}" for knobs in (*PARTS, *grid.values()) if knobs not in rows])


def _missing(run: Run, labels: Sequence[str]) -> Iterator[Block]:
    if labels:
        yield Text(f"Not measured in `{run.name}`: {len(labels)} of its rows.")
        yield Code((run_command(run, labels),))


def _cells(name: str, row: Row) -> tuple[str, ...]:
    share = row.stages_ms.get("draft_ms", 0.0) / (1e3 * row.latency_s.value)
    return (
        name,
        row.label,
        decimal(_tokens_a_step(row), 2),
        f"{share:.1%}",
        measured_decimal(row.pass_at_1),
        lost(row),
        measured_decimal(row.speedup, 2),
    )


def _cell(row: Row | None) -> str:
    if row is None:
        return NONE
    return f"{decimal(_tokens_a_step(row), 2)} / {row.pass_at_1.value:.3f} / {row.speedup.value:.2f}"


def _tokens_a_step(row: Row) -> float | None:
    """Each forward pass of the target writes one token of its own."""
    return 1 / row.target_ratio if row.target_ratio else None
