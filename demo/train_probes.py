"""`make demo-probes`: the bundled pair's probes, by the stages of `training` with the demo language's exact parser."""

import argparse
import json
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from demo.meaning import Proposition, is_valid
from demo.problems import SPLITS, make_problem
from demo.wording import read
from semspec.core import Message, Sampling, Segmentation
from semspec.engine.causal_lm import CausalLM
from semspec.probes.features import FeatureSet, LayerSet, assemble
from semspec.probes.probe import Probe, ProbeCard, save_probe
from training.cluster import cluster_segments
from training.contexts import ProbeContext, TraceRecipe, read_contexts, write_contexts
from training.evaluate import regression, verification
from training.files import digest, read_lines
from training.label import Labels, label
from training.sample import read_rows, read_states, sample_shards, shard_paths
from training.train import FitRecipe, fit, predict

log = logging.getLogger("demo.train_probes")

RECIPE = FitRecipe(loss="bce")
"""Cross-entropy rather than squared error: on the validation contexts it accepts more of what is right."""


class ParserEquivalence:
    """Two steps mean the same iff they state the same proposition."""

    def clusters(self, context: ProbeContext, segments: Sequence[str]) -> list[int]:
        last_day = len(make_problem(context.source).events)
        numbers: dict[Proposition, int] = {}
        return [numbers.setdefault(read(segment, last_day), len(numbers)) for segment in segments]

    def is_valid(self, context: ProbeContext, segment: str) -> bool | None:
        problem = make_problem(context.source)
        last_day = len(problem.events)
        history = [read(step, last_day) for step in context.reasoning.split("\n\n") if step]
        return is_valid(problem, history, read(segment, last_day))


class Data:
    """Everything the stages left behind, and its division by problem."""

    def __init__(self, work: Path, labels: Labels) -> None:
        tensors = read_states(work / "samples")
        self.labels = labels
        self.target_states, self.surprisal = tensors["target_states"], tensors["surprisal"].float()
        self.draft_states = tensors["draft_states"]
        sources = np.unique(labels.source)
        bounds = (int(0.7 * len(sources)), int(0.82 * len(sources)))
        self.train, self.validation, self.test = (
            np.isin(labels.source, part) for part in np.split(np.random.default_rng(0).permutation(sources), bounds)
        )

    def target_features(self, rows: np.ndarray, features: FeatureSet, layers: LayerSet) -> torch.Tensor:
        return assemble(features, layers, self.target_states[rows], self.surprisal[rows])

    def draft_features(self, rows: np.ndarray, layers: LayerSet) -> torch.Tensor:
        return assemble("states", layers, self.draft_states[rows[self.labels.by_draft]], None)


def fit_target(data: Data, features: FeatureSet, layers: LayerSet, recipe: str) -> Probe:
    """A target probe; recipe "cross" learns from both writers' segments, "own" (the paper's) from the target's only."""
    chosen = np.ones_like(data.train) if recipe == "cross" else ~data.labels.by_draft
    labels = torch.from_numpy(data.labels.target_probability)
    train, held_out = data.train & chosen, data.validation & chosen
    inputs = data.target_features(train, features, layers)
    return fit(inputs, labels[train], (data.target_features(held_out, features, layers), labels[held_out]), RECIPE)


def fit_draft(data: Data, layers: LayerSet) -> Probe:
    """The draft probe: the draft's own segments, labelled by their share among its samples."""
    labels = torch.from_numpy(data.labels.draft_probability)
    train, held_out = (part & data.labels.by_draft for part in (data.train, data.validation))
    inputs = data.draft_features(train, layers)
    return fit(inputs, labels[train], (data.draft_features(held_out, layers), labels[held_out]), RECIPE)


def evaluate(data: Data, draft: Probe, target: Probe, features: FeatureSet, layers: LayerSet) -> dict[str, object]:
    """Metrics of a pair of probes on the test contexts."""
    labels, drafted = data.labels, data.test & data.labels.by_draft
    q = predict(draft, data.draft_features(drafted, layers)).numpy()
    p = predict(target, data.target_features(drafted, features, layers)).numpy()
    own = data.test & ~labels.by_draft
    p_own = predict(target, data.target_features(own, features, layers)).numpy()
    return {
        "num_contexts": len(np.unique(labels.context[data.test])),
        "draft_probe": regression(labels.draft_probability[drafted], q),
        "target_probe_on_draft_segments": regression(labels.target_probability[drafted], p),
        "target_probe_on_target_segments": regression(labels.target_probability[own], p_own),
        "verification": verification(q, p, labels.valid[drafted]),
    }


VARIANTS: tuple[tuple[str, FeatureSet, LayerSet, str], ...] = (
    ("bundled", "states+surprisal", "all", "cross"),
    ("paper", "states", "all", "own"),
    ("states", "states", "all", "cross"),
    ("last-hidden", "states", "last", "cross"),
    ("surprisal", "surprisal", "all", "cross"),
)


def gather(arguments: argparse.Namespace, draft: CausalLM, target: CausalLM) -> Labels:
    """Stages 1 to 4."""
    work: Path = arguments.work
    recipe = TraceRecipe(Sampling(temperature=0.6, top_p=0.95, seed=1))
    contexts_path, samples = work / "contexts.jsonl", work / "samples"
    prompts = [
        (seed, target.encode([Message("user", make_problem(seed).question)]).token_ids)
        for seed in SPLITS["probe"][: arguments.problems]
    ]
    write_contexts(contexts_path, prompts, draft, target, recipe)
    contexts = read_contexts(contexts_path)
    log.info("%d contexts", len(contexts))
    sample_shards(samples, contexts, draft, target, recipe, shard=arguments.shard)
    if arguments.shard[1] > 1:
        raise SystemExit(0)
    rows = read_rows(samples)
    cluster_segments(work / "clusters.jsonl", contexts, rows, ParserEquivalence())
    clusters = list(read_lines(work / "clusters.jsonl"))
    return label(rows, clusters, {context.id: context.source for context in contexts})


def train_all(
    arguments: argparse.Namespace, labels: Labels, draft_lm: CausalLM, target_lm: CausalLM
) -> dict[str, object]:
    """Stages 5 and 6; saves the bundled probes, returns the metrics of every variant."""
    data = Data(arguments.work, labels)
    data_digest = digest([arguments.work / "contexts.jsonl", *shard_paths(arguments.work / "samples")])
    drafts = {layers: fit_draft(data, layers) for layers in ("all", "last")}
    report: dict[str, object] = {"num_contexts": len(np.unique(labels.context)), "data_digest": data_digest}
    for name, features, layers, recipe in VARIANTS:
        target = fit_target(data, features, layers, recipe)
        metrics = evaluate(data, drafts[layers], target, features, layers)
        report[name] = metrics
        log.info("%s: %s", name, json.dumps(metrics))
        if name == "bundled":
            _save(arguments.output / "target.safetensors", target, target_lm, features, recipe, data_digest, metrics)
            _save(
                arguments.output / "draft.safetensors", drafts[layers], draft_lm, "states", "own", data_digest, metrics
            )
    return report


def _save(
    path: Path,
    probe: Probe,
    lm: CausalLM,
    features: FeatureSet,
    recipe: str,
    data_digest: str,
    metrics: dict[str, object],
) -> None:
    card = ProbeCard(
        model=lm.info.model,
        fingerprint=lm.info.fingerprint,
        tokenizer=lm.info.tokenizer,
        shape=(lm.info.num_layers + 1, lm.info.hidden_size),
        features=features,
        layers="all",
        segmentations=(Segmentation.PARAGRAPH,),
        recipe=recipe,
        data_digest=data_digest,
        training={"loss": RECIPE.loss, "num_epochs": RECIPE.num_epochs, "equivalence": "parser"},
        metrics=metrics,
    )
    save_probe(probe.half(), card, path)
    probe.float()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", type=Path, default=Path("demo/pair"))
    parser.add_argument("--output", type=Path, default=Path("demo/pair/probes"))
    parser.add_argument("--work", type=Path, default=Path(".work/demo-probes"))
    parser.add_argument("--report", type=Path, default=Path("bench/results/probes.json"))
    parser.add_argument("--problems", type=int, default=180, help="prompts of the probe split; about 8 contexts each")
    parser.add_argument("--shard", type=_shard, default=(0, 1), help="i/n: sample only every n-th shard, then stop")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(1)
    draft, target = (CausalLM.load(str(arguments.pair / role), None, "cpu", "float32") for role in ("draft", "target"))
    labels = gather(arguments, draft, target)
    report = train_all(arguments, labels, draft, target)
    arguments.report.parent.mkdir(parents=True, exist_ok=True)
    arguments.report.write_text(json.dumps(report, indent=2) + "\n")


def _shard(text: str) -> tuple[int, int]:
    index, total = map(int, text.split("/"))
    if not 0 <= index < total:
        raise argparse.ArgumentTypeError(f"{text}: want i/n with 0 <= i < n")
    return index, total


if __name__ == "__main__":
    main()
