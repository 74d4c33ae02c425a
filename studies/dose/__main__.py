r"""How much quality is lost when the draft writes more wrong steps than the probes were trained with.

    python -m studies.dose pair NOISE FOLDER              the bundled pair with a worse draft
    python -m studies.dose report BASELINE NAME=FOLDER ...    writes studies/dose/results

A worse draft is the bundled one with noise in its weights: to each matrix normal noise is added, `NOISE` times the
matrix's standard deviation. Target and probes stay as they are. `FOLDER` of the report has `pair/`,
`algorithm/` (the shares of wrong steps) and the runs `draft/` and `semantic/`:

    python -m studies.algorithm_error --pair FOLDER/pair --questions 15 --samples 30 --work FOLDER/work \
                                      --output FOLDER/algorithm
    semspec bench run --task demo --limit 300 --temperature 0.6 --sessions 24 --pair FOLDER/pair --strategy semantic \
                      --output FOLDER/semantic
"""

import argparse
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from safetensors.torch import load_file, save_file

from semspec.bench.record import Record
from semspec.bench.report.tables import QUALITY, quality_row
from semspec.bench.summary import Row
from semspec.engine.checkpoint import model_fingerprint
from semspec.errors import InvalidRequest
from semspec.probes.probe import load_probe, save_probe
from semspec.stack import BUNDLED_PAIR
from semspec.training.files import write_json
from semspec.training.report.document import Section, Table, Text, as_markdown, write_pictures, write_text
from semspec.training.report.drawing import BLUE, ORANGE, PERCENT, Picture, panels
from semspec.training.report.numbers import Measured, decimal, measured_share
from studies.joined.__main__ import baseline_of, joined

OUTPUT = Path(__file__).parent / "results"
WEIGHTS = "model.safetensors"


def worse_draft(noise: float, folder: Path, pair: Path = BUNDLED_PAIR, seed: int = 0) -> None:
    """Save `pair` with noise in the draft's matrices to `folder`; its target is a link. The draft's probe is the same,
    its card names the new draft. Raises: InvalidRequest."""
    if folder.exists():
        raise InvalidRequest(f"{folder} exists; name another folder", "folder")
    shutil.copytree(pair / "draft", folder / "draft")
    (folder / "target").symlink_to((pair / "target").resolve())
    random = torch.Generator().manual_seed(seed)
    weights = load_file(pair / "draft" / WEIGHTS)
    for name, matrix in weights.items():
        if matrix.ndim > 1:
            added = torch.randn(matrix.shape, generator=random) * noise * matrix.float().std()
            weights[name] = (matrix.float() + added).to(matrix.dtype)
    save_file(weights, folder / "draft" / WEIGHTS, metadata={"format": "pt"})
    probes = folder / "probes"
    probes.mkdir()
    for name in ("target.safetensors", "target.json", "serving.json"):
        shutil.copy(pair / "probes" / name, probes / name)
    probe = load_probe(pair / "probes" / "draft.safetensors")
    card = replace(probe.card, fingerprint=model_fingerprint(str(folder / "draft")))
    save_probe(probe.probe, card, probes / "draft.safetensors", torch.float16)


@dataclass(frozen=True, slots=True)
class Dose:
    """One draft: its wrong steps, and what is answered with it."""

    name: str
    drafted: Measured
    """Share of wrong steps among those it writes."""
    kept: Measured
    """Share of wrong steps that come out by the served rule."""
    alone: Row
    semantic: Row


def dose(settings: Mapping[str, Any], baseline: Sequence[Record], name: str, folder: Path) -> Dose:
    """Raises: InvalidRequest when a part is missing or does not match the baseline."""
    path = folder / "algorithm" / "algorithm.json"
    try:
        rules = {one["rule"]: Measured(**one["wrong"]) for one in json.loads(path.read_text())["rules"]}
    except (OSError, ValueError, KeyError) as error:
        raise InvalidRequest(f"{path} is no result of `python -m studies.algorithm_error`: {error}", "folder") from None
    kept = next(wrong for rule, wrong in rules.items() if rule.endswith("(as served)"))
    alone, semantic = (
        joined(settings, baseline, f"{label}, {name}", folder / label)[0] for label in ("draft", "semantic")
    )
    return Dose(name, rules["draft alone"], kept, alone, semantic)


def report(doses: Sequence[Dose], output: Path) -> None:
    header = ("draft", "wrong steps of the draft", "wrong steps after the rule", "accepted segments", *QUALITY[1:])
    rows = [
        (
            one.name,
            measured_share(one.drafted),
            measured_share(one.kept),
            decimal(one.semantic.acceptance_rate),
            *quality_row(one.semantic)[1:],
        )
        for one in doses
    ]
    alone = Table(("draft", *QUALITY[1:4]), [(one.name, *quality_row(one.alone)[1:4]) for one in doses])
    picture = Picture.drawn(
        "dose", "Loss of quality by the draft's wrong steps",
        "Bars: 95% intervals. The first point is the bundled draft.",
        "pass@1 minus the target's against the share of wrong steps; the table has the numbers.", _drawn, doses,
    )  # fmt: skip
    table = Table(header, rows)
    sections = [
        Section("`semantic` with worse drafts", (table, picture)),
        Section("The drafts alone", (alone, Text("The same problems, answered by the draft without the target."))),
    ]
    write_pictures(output, sections)
    write_text(output / "report.md", as_markdown("Dose and response", sections))
    write_text(output / "dose.md", table.as_markdown())
    write_json(
        output / "dose.json",
        [{"draft": one.name, "alone": one.alone.as_json(), "semantic": one.semantic.as_json()} for one in doses],
    )


def _drawn(doses: Sequence[Dose]) -> Figure:
    figure, (axes,) = panels(1, (6.0, 3.4))
    shares = [one.drafted.value for one in doses]
    for label, colour, found in (
        ("draft alone", ORANGE, [one.alone for one in doses]),
        ("semantic", BLUE, [one.semantic for one in doses]),
    ):
        middle = [row.difference.value for row in found]
        below = [row.difference.value - row.difference_95.low for row in found]
        above = [row.difference_95.high - row.difference.value for row in found]
        axes.errorbar(shares, middle, yerr=[below, above], color=colour, marker="o", capsize=2, label=label)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xlabel("wrong steps among those that the draft writes")
    axes.set_ylabel("pass@1 minus the target's")
    axes.xaxis.set_major_formatter(PERCENT)
    axes.yaxis.set_major_formatter(PERCENT)
    axes.legend()
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m studies.dose", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    pair = commands.add_parser("pair", help="a pair with a worse draft")
    pair.add_argument("noise", type=float)
    pair.add_argument("folder", type=Path)
    page = commands.add_parser("report", help="tables and a picture")
    page.add_argument("baseline", type=Path, help="a result with answers of the target, without suffix")
    page.add_argument("doses", nargs="+", metavar="NAME=FOLDER")
    page.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args(arguments)
    try:
        if options.command == "pair":
            worse_draft(options.noise, options.folder)
            return
        settings, baseline = baseline_of(options.baseline)
        named = [text.rpartition("=") for text in options.doses]
        doses = [dose(settings, baseline, name, Path(folder)) for name, _, folder in named]
    except InvalidRequest as error:
        parser.error(error.message)
    report(doses, options.output)
    print((options.output / "dose.md").read_text(), end="")


if __name__ == "__main__":
    main()
