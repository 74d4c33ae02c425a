"""The probes' factorial: recipe x features x layers, both probes changed together, with five training seeds.

    semspec train run --config demo/factorial.yaml --shard 0/1 --work .work/factorial    samples, resumable
    python -m semspec.bench.factorial fit                                                bench/results/factorial
    python -m semspec.bench.factorial pair CELL SEED FOLDER                              a pair to serve

A cell is named RECIPE/FEATURES/LAYERS. `paper`: each probe learns from its own model's segments, squared error.
`cross`: the target's probe also learns from the draft's segments, cross-entropy. `surprisal` has no hidden state in
either probe: q is then a constant, the mean of its labels.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from semspec.bench.summary import Floats
from semspec.probes.probe import LayerSet, Probe, save_probe
from semspec.stack import BUNDLED_PAIR
from semspec.training.config import PipelineConfig, load_config
from semspec.training.data.labels import Labels
from semspec.training.data.pair import info_of
from semspec.training.evaluation.metrics import Resampling, auroc, dense_ranks, wrong_accepted
from semspec.training.evaluation.verification import Predicted, drafts
from semspec.training.files import StageFolder, write_json
from semspec.training.pipeline import Pipeline
from semspec.training.progress import Reporter
from semspec.training.report.document import Section, Table, Text, as_markdown, write_pictures, write_text
from semspec.training.report.drawing import BLUE, ORANGE, Picture, errors_of, panels
from semspec.training.report.numbers import Measured, measured_decimal, measured_share, signed
from semspec.training.trainer.fit import predict
from semspec.training.trainer.probes import Fitter, Variant
from semspec.training.trainer.recipe import Role
from semspec.training.trainer.states import FeatureSource, StateStore

CONFIG = Path("demo/factorial.yaml")
WORK = Path(".work/factorial")
OUTPUT = Path("bench/results/factorial")
SEEDS = range(5)
RECIPES: Mapping[str, Mapping[str, str]] = {
    "paper": {"labels": "own", "loss": "mse"},
    "cross": {"labels": "cross", "loss": "bce"},
}
FEATURES = ("states", "states+surprisal")
LAYERS = ("all", "middle", "last")
SURPRISAL = "surprisal"
NONE_OF_THEM = "no states"
ROLES: tuple[Role, ...] = ("draft", "target")
NUM_RESAMPLES = 400


@dataclass(frozen=True, slots=True)
class Cell:
    """One way to make both probes."""

    recipe: str
    features: str
    layers: str

    @property
    def name(self) -> str:
        return f"{self.recipe}/{self.features}/{self.layers}"

    @property
    def has_states(self) -> bool:
        return self.features != SURPRISAL


CELLS = (
    *(Cell(*one) for one in product(RECIPES, FEATURES, LAYERS)),
    *(Cell(recipe, SURPRISAL, NONE_OF_THEM) for recipe in RECIPES),
)
"""The 14 cells."""


class Factorial:
    """The samples in `work`, and the probes that are fitted to them; each fitted probe is kept there."""

    def __init__(self, config: PipelineConfig, work: Path, reporter: Reporter) -> None:
        """Raises: InvalidRequest when shards are missing."""
        self._config = config
        pipeline = Pipeline(config, work, reporter=reporter)
        self.labels: Labels = pipeline.labels
        self._infos = {role: info_of(fields) for role, fields in pipeline.pair.infos().items()}
        digest = StageFolder(work / "labels").digest
        self._store = StateStore(work / "samples")
        self._fitter = Fitter(config, self.labels, self._store, self._infos, digest, work / "cells", reporter)

    def variant(self, cell: Cell, seed: int) -> Variant:
        middle: Mapping[str, LayerSet] = {role: (round(info.num_layers / 2),) for role, info in self._infos.items()}
        of_target, of_draft = {
            "all": ("all", "all"), "middle": (middle["target"], middle["draft"]), "last": ("last", "last"),
            NONE_OF_THEM: ("last", "last"),
        }[cell.layers]  # fmt: skip
        layers = {"layers": of_target, "draft_layers": of_draft}
        changed = {**RECIPES[cell.recipe], **layers, "features": cell.features, "seeds": (seed,)}
        return Variant(f"{cell.name}, seed {seed}", self._config.probes.model_copy(update=changed))

    def predicted(self, cell: Cell, seed: int) -> Predicted:
        variant = self.variant(cell, seed)
        if cell.has_states:
            return self._fitter.predicted(variant)
        p = np.full(len(self.labels), np.nan, dtype=np.float32)
        rows = self.labels.where(self.labels.split != "train")
        source = FeatureSource(self._store, "target", *variant.recipe.inputs("target"))
        p[rows] = predict(self._fitter.fitted("target", variant).probe, source, self.labels, rows)
        return Predicted(variant.name, p, np.full_like(p, self.constant_q))

    @property
    def constant_q(self) -> float:
        """The mean of the labels that the draft's probe learns from."""
        learnt = self.labels.by_draft & (self.labels.split == "train")
        return float(self.labels.draft_probability[learnt].mean())

    def save_pair(self, cell: Cell, seed: int, folder: Path) -> None:
        """A pair to serve under the paper's rule: links to the models, the probes, and serving.json."""
        (folder / "probes").mkdir(parents=True)
        for role in ROLES:
            (folder / role).symlink_to((BUNDLED_PAIR / role).resolve())
            fitted = self._fitter.fitted(role, self.variant(cell, seed))
            if role == "draft" and not cell.has_states:
                _make_constant(fitted.probe, self.constant_q)
            save_probe(fitted.probe, fitted.card, folder / "probes" / f"{role}.safetensors", torch.float16)
        rule = {"strategy": "semantic", "gamma": self._config.report.gamma, "acceptance_rule": "sample"}
        write_json(folder / "probes" / "serving.json", rule)


def _make_constant(probe: Probe, probability: float) -> None:
    """Make `probe` return `probability` for any features."""
    last = probe.network[-1]
    assert isinstance(last, torch.nn.Linear)
    torch.nn.init.zeros_(last.weight)
    torch.nn.init.constant_(last.bias, float(np.log(probability / (1 - probability))))
    probe.calibration_inputs = probe.calibration_outputs = None


@dataclass(frozen=True, slots=True)
class Measure:
    """A number for a pair of probes, about the draft's segments of the test questions."""

    name: str
    of: Callable[[NDArray[np.float32], NDArray[np.bool_], Floats], float]
    """From p/q, whether the segment is right, and the segments' weights."""


MEASURES = (
    Measure("AUROC of p/q", lambda ratio, right, weight: auroc(dense_ranks(ratio), right, weight)),
    Measure("wrong accepted where 95% of the right ones are",
            lambda ratio, right, weight: wrong_accepted(dense_ranks(ratio), right, weight)),
    Measure("wrong accepted by min(1, p/q)", lambda ratio, right, weight: _accepted(ratio, ~right, weight)),
    Measure("right accepted by min(1, p/q)", lambda ratio, right, weight: _accepted(ratio, right, weight)),
)  # fmt: skip


def _accepted(ratio: NDArray[np.float32], mask: NDArray[np.bool_], weight: Floats) -> float:
    return float(np.minimum(1, ratio[mask]) @ weight[mask] / weight[mask].sum())


def measured(labels: Labels, found: Sequence[Predicted], resampling: Resampling) -> Floats:
    """[measures, seeds, 1 + resamples] of one cell; the first of the last axis is about all questions."""
    values = np.empty((len(MEASURES), len(found), 1 + len(resampling.counts)))
    for seed, predicted in enumerate(found):
        judged = drafts(labels, predicted, labels.split == "test", "truth")
        known = judged.known
        ratio, right = judged.ratio[known], judged.right[known] == 1
        codes = np.searchsorted(resampling.questions, judged.question[known])
        weights = [np.ones(len(codes)), *(counts[codes].astype(np.float64) for counts in resampling.counts)]
        for number, measure in enumerate(MEASURES):
            values[number, seed] = [measure.of(ratio, right, weight) for weight in weights]
    return values


def mean_of(values: Floats, cells: Sequence[int], minus: Sequence[int] = (), seed: int = 0) -> Measured:
    """The mean of some cells of `values` [cells, seeds, 1 + resamples], minus that of others.

    The standard error is of one training on one set of questions: in each resample of the questions, every cell has a
    seed drawn for it.
    """
    drawn = np.random.default_rng(seed).integers(values.shape[1], size=(len(values), values.shape[2] - 1))
    resampled = np.take_along_axis(values[:, :, 1:], drawn[:, None], axis=1)[:, 0]
    value, error = values[:, :, 0].mean(axis=1)[list(cells)].mean(), resampled[list(cells)].mean(axis=0)
    if minus:
        value, error = value - values[list(minus), :, 0].mean(), error - resampled[list(minus)].mean(axis=0)
    return Measured(float(value), float(error.std(ddof=1)))


@dataclass(frozen=True, slots=True)
class Effect:
    """A factor's levels: the mean of `cells` minus the mean of those that differ from them in this factor alone."""

    name: str
    cells: tuple[int, ...]
    minus: tuple[int, ...]


def effects() -> Iterator[Effect]:
    def numbers(**wanted: str) -> tuple[int, ...]:
        return tuple(n for n, cell in enumerate(CELLS) if all(getattr(cell, key) == v for key, v in wanted.items()))

    for features in (*FEATURES, SURPRISAL):
        name = f"cross instead of the paper's recipe, {features}"
        yield Effect(name, numbers(recipe="cross", features=features), numbers(recipe="paper", features=features))
    for recipe in RECIPES:
        with_surprisal = numbers(recipe=recipe, features=FEATURES[1])
        yield Effect(
            f"surprisal added to states, {recipe}", with_surprisal, numbers(recipe=recipe, features=FEATURES[0])
        )
        yield Effect(f"states added to surprisal, {recipe}", with_surprisal, numbers(recipe=recipe, features=SURPRISAL))
    for layers in ("all", "middle"):
        yield Effect(f"{layers} layers instead of the last", numbers(layers=layers), numbers(layers="last"))


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
    write_text(output / "README.md", as_markdown("The probes' factorial", sections))
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
    parser = argparse.ArgumentParser("python -m semspec.bench.factorial", description=__doc__)
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--work", type=Path, default=WORK, help="folder of the samples (default: .work/factorial)")
    commands = parser.add_subparsers(dest="command", required=True)
    fit = commands.add_parser("fit", help="fit all cells and write the report")
    fit.add_argument("--output", type=Path, default=OUTPUT)
    pair = commands.add_parser("pair", help="a folder for semspec bench run --pair")
    pair.add_argument("cell", choices=[cell.name for cell in CELLS])
    pair.add_argument("seed", type=int, choices=SEEDS)
    pair.add_argument("folder", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    factorial = Factorial(load_config(options.config), options.work, Reporter())
    if options.command == "pair":
        [cell] = [cell for cell in CELLS if cell.name == options.cell]
        factorial.save_pair(cell, options.seed, options.folder)
        return
    labels = factorial.labels
    tested = labels.by_draft & (labels.split == "test") & ~np.isnan(labels.valid)
    resampling = Resampling.of(labels.question[labels.split == "test"], NUM_RESAMPLES)
    values = [measured(labels, [factorial.predicted(cell, seed) for seed in SEEDS], resampling) for cell in CELLS]
    num_wrong = int((labels.valid[tested] == 0).sum())
    report(np.stack(values, axis=1), int(tested.sum()), num_wrong, options.output)
    print((options.output / "README.md").read_text(), end="")


if __name__ == "__main__":
    main()
