"""The probes' factorial: recipe x features x layers, both probes changed together, with five training seeds.

    semspec train run --config studies/factorial/config.yaml --shard 0/1 --work .work/factorial    samples, resumable
    python -m studies.factorial fit
    python -m studies.factorial pair CELL SEED FOLDER [--domain NAME] [--share S] [--recommended REPORT]
                                                                                         a pair to serve

A cell is named RECIPE/FEATURES/LAYERS. `paper`: each probe learns from its own model's segments, squared error.
`cross`: the target's probe also learns from the draft's segments, cross-entropy. `surprisal` has no hidden state in
either probe: q is then a constant, the mean of its labels.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from semspec.bench.summary import Floats
from semspec.training.config import load_config
from semspec.training.evaluation.acceptance import Cost
from semspec.training.evaluation.metrics import Resampling
from semspec.training.files import write_json
from semspec.training.progress import Reporter
from semspec.training.report.document import Section, Table, Text, as_markdown, write_pictures, write_text
from semspec.training.report.drawing import BLUE, ORANGE, Picture, errors_of, panels
from semspec.training.report.numbers import Measured, measured_decimal, measured_share, signed
from studies.factorial.cells import CELLS, effects
from studies.factorial.fits import Factorial
from studies.factorial.measures import MEASURES, mean_of, measured

CONFIG = Path(__file__).with_name("config.yaml")
WORK = Path(".work/factorial")
OUTPUT = Path(__file__).parent / "results"
SEEDS = range(5)
NUM_RESAMPLES = 400


def report(values: Floats, num_segments: int, num_wrong: int, output: Path) -> None:
    """`values`: [measures, cells, seeds, 1 + resamples]."""
    formats = (measured_decimal, measured_share, measured_share, measured_share)
    columns = [[mean_of(values[number], [cell]) for cell in range(len(CELLS))] for number in range(len(MEASURES))]
    spread = values[0, :, :, 0].std(axis=1, ddof=1)
    cells = Table(
        ("cell", *(measure.name for measure in MEASURES), "AUROC, deviation between seeds"),
        [
            (cell.name, *(write(column[n]) for write, column in zip(formats, columns, strict=True)), f"{spread[n]:.3f}")
            for n, cell in enumerate(CELLS)
        ],
    )
    differences = Table(
        ("change", *(measure.name for measure in MEASURES)),
        [
            (one.name, *(signed(write(mean_of(values[n], one.cells, one.minus))) for n, write in enumerate(formats)))
            for one in effects()
        ],
    )
    picture = Picture.drawn(
        "cells", "AUROC of p/q", "Bars: one standard error, of questions and training. Orange: the paper's recipe.",
        "Bars: AUROC of 14 cells; the table has the numbers.", _bars, columns[0],
    )  # fmt: skip
    facts = Text(
        f"{num_segments} segments of the draft at contexts of the test questions, {num_wrong} of them wrong. Means "
        f"over {values.shape[2]} training seeds; ± is the standard error of one training on one set of questions "
        "(questions and seeds are resampled together)."
    )
    sections = [Section("Cells", (facts, cells, picture)), Section("Effects", (differences,))]
    write_pictures(output, sections)
    write_text(output / "report.md", as_markdown("The probes' factorial", sections))
    write_text(output / "cells.md", cells.as_markdown())
    write_text(output / "effects.md", differences.as_markdown())
    by_cell: dict[str, Any] = {
        cell.name: {measure.name: values[m, n, :, 0].tolist() for m, measure in enumerate(MEASURES)}
        for n, cell in enumerate(CELLS)
    }
    write_json(output / "factorial.json", {"seeds": list(SEEDS), "cells": by_cell})


def _bars(found: Sequence[Measured]) -> Figure:
    figure, (axes,) = panels(1, (8.0, 0.8 + 0.3 * len(CELLS)))
    rows = list(reversed(list(zip(CELLS, found, strict=True))))
    axes.barh(
        [cell.name for cell, _ in rows], [one.value for _, one in rows], xerr=errors_of(one for _, one in rows),
        color=[ORANGE if cell.recipe == "paper" else BLUE for cell, _ in rows],
    )  # fmt: skip
    axes.axvline(0.5, color="black", linewidth=0.8)
    axes.set_xlabel("AUROC of p/q, draft-written segments, right by the language's rules")
    axes.grid(axis="y", visible=False)
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m studies.factorial", description=__doc__)
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--work", type=Path, default=WORK, help="folder of the samples (default: .work/factorial)")
    commands = parser.add_subparsers(dest="command", required=True)
    fit = commands.add_parser("fit", help="fit all cells and write the report")
    fit.add_argument("--output", type=Path, default=OUTPUT)
    pair = commands.add_parser("pair", help="a folder for semspec bench run --pair")
    pair.add_argument("cell", choices=[cell.name for cell in CELLS])
    pair.add_argument("seed", type=int, choices=SEEDS)
    pair.add_argument("folder", type=Path)
    pair.add_argument("--domain", help="train on this domain only")
    pair.add_argument("--share", type=float, default=1.0, help="of the training questions")
    pair.add_argument(
        "--recommended",
        type=Path,
        metavar="REPORT",
        help="serve the rule that `semspec train` recommends, at the costs of this report.json, not the paper's",
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    factorial = Factorial(load_config(options.config), options.work, Reporter())
    if options.command == "pair":
        [cell] = [cell for cell in CELLS if cell.name == options.cell]
        cost = Cost(**json.loads(options.recommended.read_text())["cost"]) if options.recommended else None
        factorial.save_pair(cell, options.seed, options.folder, options.domain, options.share, cost)
        return
    labels = factorial.labels
    tested = labels.by_draft & (labels.split == "test") & ~np.isnan(labels.valid)
    resampling = Resampling.of(labels.question[labels.split == "test"], NUM_RESAMPLES)
    values = [measured(labels, [factorial.predicted(cell, seed) for seed in SEEDS], resampling) for cell in CELLS]
    num_wrong = int((labels.valid[tested] == 0).sum())
    report(np.stack(values, axis=1), int(tested.sum()), num_wrong, options.output)
    print((options.output / "report.md").read_text(), end="")


if __name__ == "__main__":
    main()
