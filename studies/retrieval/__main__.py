"""What each part of `retrieval`, and each number of its gate, is worth: tables of a run with such rows.

python -m studies.retrieval RUN ...      folders of `semspec bench run`
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from semspec.bench.report.tables import lost, run_command
from semspec.bench.summary import NUM_RESAMPLES, Row, Run, load_run
from semspec.errors import InvalidRequest
from semspec.training.report.document import Block, Code, Section, Table, Text, as_markdown
from semspec.training.report.numbers import NONE, Measured, decimal, measured_decimal, signed

PARTS = {
    "": "all parts, exact",
    ":source=datastore": "static part only",
    ":source=context": "dynamic part only: prompt look-up",
    ":source=ngrams": "no semantic neighbours",
    ":num_speculative_tokens=32:tree=on": "tree of 32 tokens",
    ":gate=soft": "soft gate",
}
"""Options of `retrieval` -> what differs. The gate `exact` is the row without a gate."""
ENTROPIES, TOP_KS = (0.02, 0.05, 0.1, 0.2), (1, 3, 5)
"""Of the table of the soft gate; SENSE (arXiv 2606.00021) calls them gamma and k, and takes 0.05 and 3."""
IN_PROCESS = "in-process/retrieval"
"""The runner of rows with numbers of the gate, which are no options of a request."""
HEADER = ("what differs", "configuration", "tokens a step", "minus all parts", "retrieval, share of latency", "pass@1",
          "minus target (McNemar)", "speed-up")  # fmt: skip


def blocks(run: Run) -> Iterator[Block]:
    """The tables of a run with rows of `retrieval`; nothing of one without."""
    own = [row for row in run.rows if row.configuration.method == "retrieval"]
    if not own:
        return
    head = own[0].label.partition(":")[0]
    rows = {"".join(f":{name}={value}" for name, value in row.configuration.knobs.items()): row for row in own}
    if parts := {name: rows[knobs] for knobs, name in PARTS.items() if knobs in rows}:
        yield Text(
            f"`{run.name}`: parts. Tokens a step: tokens of the answers over the target's forward passes; differences "
            "are paired by question."
        )
        yield Table(HEADER, tuple(_cells(run, name, row, rows.get("")) for name, row in parts.items()))
    grid = {(entropy, top_k): f":gate=soft:gate_entropy={entropy:g}:gate_top_k={top_k}"
            for entropy in ENTROPIES for top_k in TOP_KS}  # fmt: skip
    if any(knobs in rows for knobs in grid.values()):
        yield Text(f"`{run.name}`: the soft gate's `gate_entropy`, down, and `gate_top_k`, across. Each cell: "
                   f"tokens a step / pass@1{' / speed-up' if run.is_timed else ''}.")  # fmt: skip
        header = ("gate_entropy", *(f"gate_top_k {top_k}" for top_k in TOP_KS))
        yield Table(header, tuple(
            (f"{entropy:g}", *(_cell(run, rows.get(grid[entropy, top_k])) for top_k in TOP_KS)) for entropy in ENTROPIES
        ))  # fmt: skip
    labels = {f"{head}{knobs}": knobs for knobs in PARTS} | {f"{IN_PROCESS}{knobs}": knobs for knobs in grid.values()}
    yield from _missing(run, [label for label, knobs in labels.items() if knobs not in rows])


def _missing(run: Run, labels: Sequence[str]) -> Iterator[Block]:
    if labels:
        yield Text(f"Not measured in `{run.name}`: {len(labels)} of its rows.")
        yield Code((run_command(run, labels),))


def _cells(run: Run, name: str, row: Row, whole: Row | None) -> tuple[str, ...]:
    """`whole`: the row with all parts, if there is one."""
    share = row.stages_ms.get("draft_ms", 0.0) / (1e3 * row.latency_s.value)
    return (
        name,
        row.label,
        measured_decimal(tokens_a_step(run, row.label), 2),
        NONE if whole in (None, row) else signed(measured_decimal(tokens_a_step(run, row.label, whole.label), 3)),
        f"{share:.1%}" if run.is_timed else NONE,
        measured_decimal(row.pass_at_1),
        lost(row),
        measured_decimal(row.speedup, 2) if run.is_timed else NONE,
    )


def _cell(run: Run, row: Row | None) -> str:
    if row is None:
        return NONE
    steps = tokens_a_step(run, row.label)
    return f"{decimal(steps.value, 2)} / {row.pass_at_1.value:.3f}" + (
        f" / {row.speedup.value:.2f}" if run.is_timed else ""
    )


def tokens_a_step(run: Run, label: str, other: str | None = None) -> Measured:
    """Tokens a forward pass of the target, each of which writes one token of its own; minus those of `other`.

    The error is by resampling questions.
    """
    labels = [label] if other is None else [label, other]
    counts = [_counts(run, one) for one in labels]
    questions = sorted(set.intersection(*(set(own) for own in counts)))
    table = np.array([[own[question] for question in questions] for own in counts], np.float64)
    picks = np.random.default_rng(0).integers(0, len(questions), (NUM_RESAMPLES, len(questions)))

    def difference(sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of `sums` `[labels, ..., 2]`: tokens, and those of the target."""
        ratios = sums[..., 0] / sums[..., 1]
        return np.asarray(ratios[0] - (ratios[1] if other is not None else 0.0))

    return Measured(float(difference(table.sum(1))), float(difference(table[:, picks].sum(2)).std()))


def _counts(run: Run, label: str) -> dict[str, tuple[int, int]]:
    """Question -> tokens of its answers, and how many of them the target wrote or drew."""
    counts: dict[str, tuple[int, int]] = {}
    for record in run.records:
        if record.label == label:
            num_tokens, num_steps = counts.get(record.question, (0, 0))
            counts[record.question] = (num_tokens + record.num_tokens, num_steps + (record.num_target_tokens or 0))
    return counts


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m studies.retrieval", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of `semspec bench run`")
    try:
        found = [block for run in parser.parse_args(arguments).runs for block in blocks(load_run(run))]
    except InvalidRequest as error:
        parser.error(error.message)
    print(as_markdown("Retrieval", [Section("Parts and gate", tuple(found))]), end="")


if __name__ == "__main__":
    main()
