"""How far the next segment's meaning is from the target's: the error of the acceptance rule, and that of the probes.

    python -m studies.algorithm_error      writes studies/algorithm_error/results

At contexts of the demo's `report` problems both models write segments; the exact parser says which mean the same. Their
shares P (target) and Q (draft) of each meaning stand for the models' distributions. A rule keeps segment i of the
draft's N with probability a_i, otherwise the target writes: meaning m comes out with probability R(m) = sum of a_i / N
over those that mean m, plus (1 - sum of all a_i / N) P(m). The error is the total variation distance of R and P.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from semspec.bench.summary import by_question, mean
from semspec.gateway.options import Defaults
from semspec.probes.probe import load_probe
from semspec.stack import BUNDLED_PAIR, StackConfig
from semspec.training.config import PipelineConfig, load_config
from semspec.training.data.questions import Question, gather
from semspec.training.data.stages import Questions
from semspec.training.evaluation.verification import Predicted
from semspec.training.files import write_json
from semspec.training.pipeline import SHARDED, Pipeline
from semspec.training.progress import Reporter
from semspec.training.report.document import Section, Table, Text, as_markdown, write_pictures, write_text
from semspec.training.report.drawing import BLUE, Picture, errors_of, panels
from semspec.training.report.numbers import NONE, Measured, measured_share
from semspec.training.trainer.fit import predict
from semspec.training.trainer.recipe import Role
from semspec.training.trainer.states import FeatureSource, StateStore

Floats = NDArray[np.float64]

CONFIG = Path("demo/probes.yaml")
OUTPUT = Path(__file__).parent / "results"
WORK = Path(".work/algorithm")


@dataclass(frozen=True, slots=True)
class Point:
    """The segments of both models at one context."""

    question: int
    meaning: NDArray[np.int64]
    """[segments of the draft]"""
    ratio: Floats
    """p/q by the probes, [segments of the draft]."""
    is_wrong: Floats
    """By the language's rules, [meanings]."""
    p: Floats
    """Share of the target's segments, [meanings]."""
    q: Floats
    """Share of the draft's segments, [meanings]."""

    @property
    def true_ratio(self) -> Floats:
        """p/q, [segments of the draft]."""
        ratio: Floats = (self.p / np.maximum(self.q, 1e-12))[self.meaning]
        return ratio

    def after(self, accepted: Floats, rewritten: Floats | None = None) -> Floats:
        """Probabilities of the meanings, [meanings], if segment i is kept with probability `accepted[i]`, and others
        are written anew from `rewritten`, by default as the target writes."""
        kept = np.bincount(self.meaning, accepted, len(self.p)) / len(self.meaning)
        outcome: Floats = kept + (1 - kept.sum()) * (self.p if rewritten is None else rewritten)
        return outcome

    def residual(self) -> Floats:
        """norm(max(0, p - q)), [meanings]; p where they are equal."""
        rest = np.maximum(self.p - self.q, 0)
        return rest / rest.sum() if rest.sum() else self.p


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    accepted: Callable[[Point], Floats]
    """Probability that each of the draft's segments is kept."""
    is_exact: bool = False
    """Whether rewrites are drawn from the residual distribution."""


def rules(threshold: float) -> list[Rule]:
    """The rules that are compared; `threshold` is the served one."""
    return [
        Rule("draft alone", lambda point: np.ones(len(point.meaning))),
        Rule("min(1, p/q), true p and q", lambda point: np.minimum(1, point.true_ratio)),
        Rule("the same, rewrites from the residual", lambda point: np.minimum(1, point.true_ratio), is_exact=True),
        Rule(f"p/q >= {threshold:g}, true p and q", lambda point: (point.true_ratio >= threshold).astype(float)),
        Rule("min(1, p/q), probes", lambda point: np.minimum(1, point.ratio)),
        Rule(f"p/q >= {threshold:g}, probes (as served)", lambda point: (point.ratio >= threshold).astype(float)),
    ]


@dataclass(frozen=True, slots=True)
class Result:
    """Means over contexts, with standard errors between questions."""

    rule: str
    distance: Measured
    """Total variation distance from the target's meanings."""
    accepted: Measured | None
    """None where nothing is drafted."""
    wrong: Measured
    """Share of wrong segments that come out."""


def results(points: Sequence[Point], found: Sequence[Rule]) -> Iterator[Result]:
    for rule in found:
        rows = [_row(point, rule) for point in points]
        yield Result(rule.name, *(_mean([row[column] for row in rows], points) for column in range(3)))


def _row(point: Point, rule: Rule) -> tuple[float, float, float]:
    accepted = rule.accepted(point)
    outcome = point.after(accepted, point.residual() if rule.is_exact else None)
    return distance(outcome, point.p), float(accepted.mean()), float(outcome @ point.is_wrong)


def target_itself(points: Sequence[Point], num_samples: int, seed: int = 0) -> Result:
    """A second draw of the target's meanings, as many as of the draft: what the distance is by sampling alone."""
    rng = np.random.default_rng(seed)
    again = [rng.multinomial(num_samples, point.p) / num_samples for point in points]
    distances = [distance(one, point.p) for one, point in zip(again, points, strict=True)]
    wrong = [float(point.p @ point.is_wrong) for point in points]
    return Result("target, drawn again", _mean(distances, points), None, _mean(wrong, points))


def distance(one: Floats, other: Floats) -> float:
    """Total variation distance."""
    return float(np.abs(one - other).sum() / 2)


def _mean(values: Sequence[float], points: Sequence[Point]) -> Measured:
    """Mean over questions of the means over their contexts."""
    numbers = np.unique([point.question for point in points], return_inverse=True)[1]
    return mean(by_question(np.array(values), numbers))


def sampled(
    config: PipelineConfig, questions: Sequence[Question], work: Path, pair: Path, reporter: Reporter
) -> list[Point]:
    """The points of `questions`, by the pipeline's first stages; resumable in `work`."""
    pipeline = Pipeline(config, work, reporter=reporter)
    pipeline.questions = Questions(questions, config.shard_questions)
    for stage in SHARDED:
        pipeline.make(stage)
    labels, store = pipeline.labels, StateStore(work / "samples")
    drafted = np.flatnonzero(labels.by_draft)
    probabilities: dict[Role, NDArray[np.float32]] = {}
    roles: tuple[Role, ...] = ("draft", "target")
    for role in roles:
        artifact = load_probe(pair / "probes" / f"{role}.safetensors")
        source = FeatureSource(store, role, artifact.card.features, artifact.card.layers)
        probabilities[role] = np.full(len(labels), np.nan, dtype=np.float32)
        probabilities[role][drafted] = predict(artifact.probe, source, labels, drafted)
    clusters = {shard: pipeline.clusters.folder.rows(shard) for shard in np.unique(labels.shard).tolist()}
    meaning = np.array(
        [clusters[shard][row]["cluster"] for shard, row in zip(labels.shard, labels.row, strict=True)], dtype=np.int64
    )
    ratio = Predicted("served", probabilities["target"], probabilities["draft"]).ratio.astype(np.float64)
    points = []
    for number in np.unique(labels.context):
        own = labels.context == number
        by_draft = own & labels.by_draft
        if not by_draft.any():
            continue
        names, indices = np.unique(meaning[own], return_inverse=True)
        counts = {True: np.zeros(len(names)), False: np.zeros(len(names))}
        for is_draft in counts:
            counts[is_draft] = np.bincount(indices[labels.by_draft[own] == is_draft], minlength=len(names)).astype(
                float
            )
        is_wrong = np.zeros(len(names))
        is_wrong[indices] = labels.valid[own] == 0
        shares = {is_draft: one / one.sum() for is_draft, one in counts.items()}
        places = np.searchsorted(names, meaning[by_draft])
        question = int(labels.question[own][0])
        points.append(Point(question, places, ratio[by_draft], is_wrong, shares[False], shares[True]))
    return points


def report(found: Sequence[Result], points: Sequence[Point], num_samples: int, output: Path) -> None:
    header = ("rule", "distance from the target's meanings", "accepted", "wrong segments")
    rows = [
        (
            one.rule,
            measured_share(one.distance),
            measured_share(one.accepted) if one.accepted else NONE,
            measured_share(one.wrong),
        )
        for one in found
    ]
    num_questions = len({point.question for point in points})
    picture = Picture.drawn(
        "distances", "Distance from the target's meanings", "Total variation distance; bars: one standard error.",
        "Bars: total variation distance by rule; the table has the numbers.", bars, found,
    )  # fmt: skip
    facts = Text(
        f"{len(points)} contexts of {num_questions} questions, {num_samples} segments of each model at each context, "
        "temperature 0.6. A mean over contexts, with the standard error between questions. `target, drawn again` is "
        "the distance that sampling alone makes; distances include about as much."
    )
    cost = Text(
        "Rewrites from the residual distribution make the rule exact if p and q are. Drawn by rejection, they cost as "
        "many segments of the target as the target alone: a rejection has probability d, the distance of draft and "
        "target, and then each segment of the target is kept with probability d. So they are not offered."
    )
    sections = [Section("Error of the rule and of the probes", (facts, Table(header, rows), picture, cost))]
    write_pictures(output, sections)
    write_text(output / "report.md", as_markdown("What the acceptance rule changes", sections))
    write_text(output / "distances.md", Table(header, rows).as_markdown())
    facts_json: Mapping[str, object] = {
        "num_contexts": len(points), "num_questions": num_questions, "num_samples": num_samples,
        "rules": [asdict(one) for one in found],
    }  # fmt: skip
    write_json(output / "algorithm.json", dict(facts_json))


def bars(found: Sequence[Result]) -> Figure:
    """A bar per rule."""
    figure, (axes,) = panels(1, (8.0, 0.8 + 0.35 * len(found)))
    rows = list(reversed(found))
    distances = [row.distance for row in rows]
    axes.barh([row.rule for row in rows], [one.value for one in distances], xerr=errors_of(distances), color=BLUE)
    axes.set_xlabel("total variation distance from the target's meanings")
    axes.grid(axis="y", visible=False)
    return figure


def chosen(config: PipelineConfig, num_questions: int) -> list[Question]:
    """The configuration's test questions, at most so many of each domain."""
    test = [one for one in gather(config.questions, config.evaluation_sets, config.shares)[0] if one.split == "test"]
    domains = sorted({one.domain for one in test})
    return [one for name in domains for one in [every for every in test if every.domain == name][:num_questions]]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m studies.algorithm_error", description=__doc__)
    parser.add_argument("--questions", type=int, default=30, help="of each of the two kinds (default: 30)")
    parser.add_argument("--samples", type=int, default=200, help="segments of each model at a context (default: 200)")
    parser.add_argument(
        "--pair", type=Path, default=BUNDLED_PAIR, help="draft/, target/ and probes/ (default: bundled)"
    )
    parser.add_argument("--work", type=Path, default=WORK, help="folder of the samples (default: .work/algorithm)")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder of the results")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    config = load_config(CONFIG)
    samples = config.samples.model_copy(update={"num_samples": options.samples, "num_test_samples": options.samples})
    models = {
        role: getattr(config, role).model_copy(update={"model": str(options.pair / role)})
        for role in ("draft", "target")
    }
    config = config.model_copy(update={"samples": samples, **models})
    points = sampled(config, chosen(config, options.questions), options.work, options.pair, Reporter())
    threshold = Defaults.model_validate(StackConfig.of_pair(options.pair).read_serving()).acceptance.threshold or 0.0
    found = [target_itself(points, options.samples), *results(points, rules(threshold))]
    report(found, points, options.samples, options.output)
    print((options.output / "report.md").read_text(), end="")


if __name__ == "__main__":
    main()
