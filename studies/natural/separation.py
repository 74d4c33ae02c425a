"""What tells right from wrong drafted segments: `python -m studies.natural.separation`.

Scores of the drafted segments of the test questions, against two truths: one of the target's samples means the same,
and, with the file of `studies.natural.rollouts`, the segment leads to the right answer where the target's own does.
Nets learn from the samples of the other questions, with each of three seeds. Every score becomes a probability for the
log-loss by logistic regression on the other questions. `keep` writes each segment's scores, `report` prints the tables
from that file alone.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from semspec.errors import InvalidRequest, SemspecError
from semspec.probes.probe import LEAST_PROBABILITY
from semspec.reporting.files import Row
from semspec.reporting.progress import Reporter
from semspec.training.config import PipelineConfig, load_config
from semspec.training.data.labels import Labels
from semspec.training.data.pair import info_of
from semspec.training.evaluation.likelihood import fit, probabilities
from semspec.training.evaluation.metrics import (
    Resampling,
    auroc,
    dense_ranks,
    log_loss,
    select_statistics,
    wrong_accepted,
)
from semspec.training.files import StageFolder
from semspec.training.pipeline import Pipeline
from semspec.training.trainer.probes import Fitter, Variants
from semspec.training.trainer.states import FeatureSource, StateStore
from semspec.types import Writer
from studies.natural.files import read_compressed, write_compressed
from studies.natural.sequence import fit_sequence, predict_sequence, token_statistics

Floats = NDArray[np.floating[Any]]
Mask = NDArray[np.bool_]
Scores = dict[tuple[str, int | None], Floats]
"""By name, and seed of the net if there is one."""

SEEDS = (0, 1, 2)
NUM_RESAMPLES = 1000
NUM_FOLDS = 5
LEAST_SEGMENTS = 10
"""Least number of right and of wrong segments to measure anything on."""
BASELINES = ("mean surprisal", "likelihood")
PROBES = {
    "last layer": "states of the last layer",
    "states alone": "states of all layers",
    "paper recipe": "states of all layers, the paper's recipe",
    "served": "states with surprisal",
}
"""Variants of the pipeline, and what they are called here."""
COLUMNS = (
    "score",
    "seed",
    "AUROC",
    "minus the better baseline's",
    "log-loss",
    "wrong ones accepted with 95% of the right",
)


@dataclass(frozen=True, slots=True)
class Truth:
    """Some drafted segments, and which are right."""

    name: str
    rows: NDArray[np.int64]
    """Their indices in the labels."""
    right: Mask


class Data:
    """What a run has left: labels, states, statistics of tokens."""

    def __init__(self, config: PipelineConfig, work: Path) -> None:
        """Raises: SemspecError when the run is not complete."""
        self.config, self.work = config, work
        self.labels: Labels = Pipeline(config, work).labels
        self._samples = StageFolder(work / "samples")
        self.store = StateStore(self._samples.path)

    @cached_property
    def rows(self) -> dict[int, list[Row]]:
        """The rows of each samples shard."""
        return {shard: list(self._samples.rows(shard)) for shard in self.store.shards}

    @property
    def test(self) -> Mask:
        """The drafted segments of the test questions."""
        mask: Mask = self.labels.by_draft & (self.labels.split == "test")
        return mask

    def by_samples(self) -> Truth:
        """Return the truth by which a segment is right if one of the target's samples means the same."""
        rows = np.flatnonzero(self.test)
        return Truth("the target says it", rows, self.labels.target_probability[rows] > 0)

    def by_rollouts(self, records: Sequence[Row]) -> Truth:
        """Return the truth by which a segment is right if most of the target's continuations are, among contexts in
        which the target's own segment is right."""
        indices = {
            (shard, row): index
            for index, (shard, row) in enumerate(
                zip(self.labels.shard.tolist(), self.labels.row.tolist(), strict=True)
            )
        }
        places: dict[str, list[tuple[int, int]]] = {}
        for shard, rows in self.rows.items():
            for number, row in enumerate(rows):
                if row["writer"] == Writer.DRAFT:
                    places.setdefault(row["context"], []).append((shard, number))
        found = dict[int, bool]()
        for record in records:
            draft, target = record.get("draft"), record.get("target")
            if draft and target and _is_mostly(target["right"]):
                index = indices.get(places[record["context"]][draft["sample"]])
                if index is not None and self.test[index]:
                    found[index] = _is_mostly(draft["right"])
        rows_found = np.array(sorted(found), dtype=np.int64)
        return Truth("rollouts", rows_found, np.array([found[row] for row in rows_found], bool))

    def scores(self, reporter: Reporter) -> Scores:
        """Return every score by name and seed, aligned with the labels; higher is likelier right."""
        labels = self.labels
        source = FeatureSource(self.store, "target", "surprisal", "all")
        surprisal = source.read(labels, np.arange(len(labels))).numpy()
        seen = labels.by_draft & (labels.split != "test")
        weights = fit(surprisal[seen], labels.target_probability[seen] > 0)
        found: Scores = {
            ("mean surprisal", None): select_statistics(surprisal, ["mean_log_probability"])[:, 0],
            ("likelihood", None): _logit(probabilities(surprisal, *weights)),
        }
        for seed in SEEDS:
            for name, score in self._of_seed(seed, reporter):
                found[name, seed] = score
        return found

    def _of_seed(self, seed: int, reporter: Reporter) -> Iterator[tuple[str, Floats]]:
        config = self.config.model_copy(
            update={"probes": self.config.probes.model_copy(update={"seed": seed})}
        )
        manifest = self._samples.manifests(self._samples.numbers())[0]
        infos = {role: info_of(fields) for role, fields in manifest.facts["models"].items()}
        digest = StageFolder(self.work / "labels").digest
        folder = self.work / "probes"
        fitter = Fitter(config, self.labels, self.store, infos, digest, folder, reporter)
        domain = config.probes.domain
        variants = Variants.of(config, [] if domain is None else [domain])
        for variant in (*variants.compared, variants.served):
            if variant.name in PROBES:
                predicted, name = fitter.predicted(variant), PROBES[variant.name]
                yield name, _logit(predicted.target_probability)
                with np.errstate(invalid="ignore"):
                    yield f"{name}, p/q", np.log(predicted.ratio.clip(LEAST_PROBABILITY))
        with reporter.busy(f"sequence model, seed {seed}"):
            yield "sequence model", self._sequence(seed)

    def _sequence(self, seed: int) -> Floats:
        labels = self.labels
        segments = token_statistics(labels, self.store, self.rows)
        train, validation = (
            np.flatnonzero(labels.split == split) for split in ("train", "validation")
        )
        targets = torch.tensor(labels.target_probability)
        net = fit_sequence(segments, targets, train, validation, seed)
        return _logit(predict_sequence(net, segments, np.arange(len(labels))))


def _is_mostly(right: Sequence[bool]) -> bool:
    return 2 * sum(right) > len(right)


def _logit(probability: Floats) -> Floats:
    clipped = probability.astype(np.float64).clip(LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
    logits: Floats = np.log(clipped / (1 - clipped))
    return logits


def table(
    truth: Truth, scores: Mapping[tuple[str, int | None], Floats], question: NDArray[np.int64]
) -> Iterator[str]:
    """Yield the table of one truth, Markdown. `scores`, `question`: aligned with the labels.

    Raises: InvalidRequest when there are too few right or wrong segments.
    """
    right, question = truth.right, question[truth.rows]
    num_right, num_wrong = int(right.sum()), int((~right).sum())
    if min(num_right, num_wrong) < LEAST_SEGMENTS:
        raise InvalidRequest(
            f"{truth.name}: {num_right} right and {num_wrong} wrong segments, at least {LEAST_SEGMENTS} of each are "
            "needed",
            remedy="give more questions for the report",
        )
    resampling = Resampling.of(question, NUM_RESAMPLES)
    codes = np.searchsorted(resampling.questions, question)
    weights = np.concatenate([np.ones((1, len(question))), resampling.counts[:, codes]])
    aurocs = {
        key: np.array([auroc(dense_ranks(score[truth.rows]), right, draw) for draw in weights])
        for key, score in scores.items()
    }
    baseline = max((aurocs[name, None] for name in BASELINES), key=lambda values: values[0])
    yield f"Right: {truth.name}. {num_right} right and {num_wrong} wrong segments of {len(resampling.questions)} "
    yield "questions; 95% intervals over questions."
    yield ""
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|---" * len(COLUMNS) + "|"
    for (name, seed), score in scores.items():
        predicted = cross_fitted(score[truth.rows], right, codes)
        losses = np.array([log_loss(right.astype(np.float64), predicted, draw) for draw in weights])
        cells = [name, "" if seed is None else str(seed), interval_of(aurocs[name, seed])]
        cells.append("" if name in BASELINES else interval_of(aurocs[name, seed] - baseline, "+"))
        ranks = dense_ranks(score[truth.rows])
        accepted = np.array([wrong_accepted(ranks, right, draw) for draw in weights])
        yield f"| {' | '.join([*cells, interval_of(losses), interval_of(accepted)])} |"


def cross_fitted(score: Floats, right: Mask, question: NDArray[np.int64]) -> Floats:
    """Return the probability of right, by logistic regression on the score over the questions of the other folds."""
    questions = np.random.default_rng(0).permutation(np.unique(question))
    inputs = ((score - score.mean()) / max(float(score.std()), 1e-9))[:, None]
    predicted = np.empty(len(score))
    for fold in np.array_split(questions, min(NUM_FOLDS, len(questions))):
        is_held = np.isin(question, fold)
        known = right[~is_held]
        if known.all() or not known.any():  # one class, or a single question
            predicted[is_held] = (known.sum() + 1) / (len(known) + 2)
        else:
            model = LogisticRegression().fit(inputs[~is_held], known)
            predicted[is_held] = model.predict_proba(inputs[is_held])[:, 1]
    return predicted


def interval_of(values: Floats, sign: str = "") -> str:
    """Format the first of `values`, with the 95% interval of the others, which are draws."""
    low, high = np.nanquantile(values[1:], (0.025, 0.975))
    return f"{values[0]:{sign}.3f} ({low:{sign}.3f} to {high:{sign}.3f})"


def kept(
    truths: Sequence[Truth], scores: Scores, question: NDArray[np.int64]
) -> Iterator[dict[str, Any]]:
    """Yield a record of each segment that a truth knows: question, `right` by truth, and `scores` by name and seed."""
    rows = np.unique(np.concatenate([truth.rows for truth in truths]))
    for row in rows.tolist():
        right = {
            truth.name: bool(truth.right[np.flatnonzero(truth.rows == row)[0]])
            for truth in truths
            if row in truth.rows
        }
        values = [[name, seed, float(score[row])] for (name, seed), score in scores.items()]
        yield {"question": int(question[row]), "right": right, "scores": values}


def read_kept(
    records: Sequence[Mapping[str, Any]],
) -> tuple[list[Truth], Scores, NDArray[np.int64]]:
    """Return the truths, scores and questions of records from `kept`, as `table` takes them."""
    names = dict.fromkeys(name for record in records for name in record["right"])
    truths = []
    for name in names:
        known = [number for number, record in enumerate(records) if name in record["right"]]
        right = [records[number]["right"][name] for number in known]
        truths.append(Truth(name, np.array(known, np.int64), np.array(right, bool)))
    scores: Scores = {
        (name, seed): np.array([record["scores"][column][2] for record in records])
        for column, (name, seed, _) in enumerate(records[0]["scores"])
    }
    return truths, scores, np.array([record["question"] for record in records], np.int64)


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("keep")
    command.add_argument("config", type=Path, help="configuration of the run")
    command.add_argument("work", type=Path, help="its work folder")
    command.add_argument("file", type=Path, help="compressed JSON lines to write")
    command.add_argument("--rollouts", type=Path, help="JSON lines of the rollouts")
    commands.add_parser("report").add_argument("file", type=Path)
    options = parser.parse_args()
    if options.command == "keep":
        try:
            data = Data(load_config(options.config), options.work)
            truths = [data.by_samples()]
            if options.rollouts:
                lines = options.rollouts.read_text().splitlines()
                truths.append(data.by_rollouts([json.loads(line) for line in lines]))
            records = list(kept(truths, data.scores(Reporter()), data.labels.question))
        except SemspecError as error:
            raise SystemExit(str(error)) from None
        write_compressed(options.file, records)
        return
    truths, scores, question = read_kept(read_compressed(options.file))
    for truth in truths:
        try:
            print("\n".join(table(truth, scores, question)), end="\n\n")
        except InvalidRequest as error:
            print(error, end="\n\n")


if __name__ == "__main__":
    main()
