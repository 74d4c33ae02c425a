"""The last stages: fit the probes, evaluate them on held-out questions, and export them with their report."""

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from semspec.decoding.likelihood.calibration import CALIBRATION_FILE, as_json, load_calibration
from semspec.engine.batch import ContextBatch
from semspec.errors import InvalidRequest, Mismatch
from semspec.files import digest_of
from semspec.probes.probe import save_probe
from semspec.probes.verifier import ProbeVerifier
from semspec.release import Release, ReleasedModel, load_release
from semspec.reporting.files import AGAIN, read_json, write_json
from semspec.reporting.progress import Reporter, timed
from semspec.training.config import PipelineConfig
from semspec.training.data.contexts import ProbeContext
from semspec.training.data.labels import Labels
from semspec.training.data.pair import Pair, info_of
from semspec.training.data.stages import ClustersStage
from semspec.training.evaluation.acceptance import Cost, card_curve, default_rule
from semspec.training.evaluation.evaluate import Evidence, Report, evaluate
from semspec.training.evaluation.likelihood import LikelihoodReport, Pilot, calibrated, predicted
from semspec.training.files import StageFolder
from semspec.training.trainer.probes import ALTERNATIVES, SERVED, Fitter, Variant, Variants
from semspec.training.trainer.states import FeatureSource, StateStore
from semspec.types import Acceptance, ModelInfo, SamplingParams, Segmentation, Writer

NUM_TIMED_CONTEXTS = 24
TAIL_CHARACTERS = 400


def measure_cost(
    pair: Pair, contexts: Sequence[ProbeContext], segmentation: Segmentation, max_tokens: int
) -> Cost:
    """Measure median times over `contexts` of generating and scoring one next segment after a prefilled context."""
    written: dict[Writer, list[float]] = {Writer.DRAFT: [], Writer.TARGET: []}
    reads: list[float] = []
    for context in contexts:
        for writer, model in pair.models.items():
            batch = ContextBatch(model.lm, model.lm.tokenizer.context_ids(context.read_by(writer)))
            [segment], seconds = timed(
                partial(batch.sample, SamplingParams(), [0], segmentation, max_tokens)
            )
            written[writer].append(1e3 * seconds / len(segment.token_ids))
            if writer is Writer.TARGET:
                reads.append(1e3 * timed(partial(batch.read, [segment.token_ids]))[1])
    return Cost(
        draft_ms_per_token=round(median(written[Writer.DRAFT]), 3),
        target_ms_per_token=round(median(written[Writer.TARGET]), 3),
        read_ms=round(median(reads), 3),
        judge_ms=0.0,
    )


def export_release(config: PipelineConfig, rule: dict[str, object] | None = None) -> Release:
    """Write `pair.json`, which names the contents of `config.output`. Without `rule`, the rule of the previous
    `pair.json` stays. Raises: Mismatch when the folder holds neither probes nor a calibration, or no rule."""
    output = config.output
    calibration = (
        load_calibration(output / CALIBRATION_FILE)
        if (output / CALIBRATION_FILE).exists()
        else None
    )
    probes = (
        ProbeVerifier.load(output).handshake() if (output / "target.safetensors").exists() else None
    )
    found = set[tuple[tuple[str, str], tuple[str, str]]]()
    if probes is not None:
        found.add(
            (
                (probes.draft_model, probes.draft_tokenizer),
                (probes.target_model, probes.target_tokenizer),
            )
        )
    if calibration is not None:
        first, second = calibration.draft, calibration.target
        found.add(((first.fingerprint, first.tokenizer), (second.fingerprint, second.tokenizer)))
    if len(found) != 1:
        contents = (
            "probes and a calibration of other models"
            if found
            else "neither probes nor a calibration"
        )
        raise Mismatch(
            f"{output} holds {contents}",
            remedy="name another `output`, or make them with `semspec train run`",
        )
    [prints] = found
    draft, target = (
        ReleasedModel(_relative_model(model.model, output), *digests, model.revision, model.dtype)
        for model, digests in zip((config.draft, config.target), prints, strict=True)
    )
    rule = load_release(output).rule if rule is None else rule
    likelihood = calibration.digest if calibration else ""
    release = Release(config.name, config.version, draft, target, rule, likelihood=likelihood)
    release = release.with_probes(probes) if probes else release
    release.save(output)
    return release


def _relative_model(model: str, output: Path) -> str:
    """Return a model's folder or GGUF file relative to `output`, or its name on the hub."""
    return os.path.relpath(model, output) if Path(model).exists() else model


class Export:
    """Makes the probes in `config.output`, the alternatives next to them, and the report in WORK/report."""

    def __init__(
        self,
        config: PipelineConfig,
        work: Path,
        labels: Labels,
        clusters: ClustersStage,
        reporter: Reporter,
    ) -> None:
        self._config, self._work, self._labels, self._reporter = config, work, labels, reporter
        self._contexts, self._samples, self._clusters = (
            clusters.contexts,
            clusters.samples,
            clusters,
        )

    def fit(self) -> None:
        """Fit the served probes, then those that the report compares with; each is saved when it is complete."""
        for variant in self._variants.all:
            self._fitter.predicted(variant)

    def calibrate(self, pair: Pair, shards: Sequence[int]) -> None:
        """Write `likelihood.json` to `config.output`, and the page WORK/likelihood/report.html. `shards`: those of the
        pilot. Raises: InvalidRequest when they are not enough to calibrate on."""
        self._pilot.check()
        with self._reporter.busy("calibrating likelihood"):
            found = self._calibrated(self._cost(pair, shards))
        self._export_likelihood(found)
        has_probes = (self._config.output / "target.safetensors").exists()
        release = export_release(self._config, None if has_probes else self._default(None, found))
        self._reporter.say(
            f"{found.sentence}\ndefault of the release: {release.rule['strategy']}\n"
            f"{self._work}/likelihood/report.html; calibration in {self._config.output}"
        )

    def _default(
        self, semantic: Acceptance | None, likelihood: LikelihoodReport | None
    ) -> dict[str, object]:
        """Return the rule of the release. `semantic`: the rule recommended for the probes, if any."""
        infos = self._infos()
        speed_up = likelihood.chosen.speed_up if likelihood else None
        tokenizers = infos["draft"].tokenizer, infos["target"].tokenizer
        return default_rule(semantic, speed_up, self._config.report.gamma, *tokenizers)

    def report(self, pair: Pair) -> None:
        """Evaluate the probes; write the report, then the probes with their cards and the recommended rule."""
        from semspec.training.evaluation.report import (  # imports matplotlib
            examples_table,
            write_report,
        )

        folder = self._work / "report"
        with self._reporter.busy("measuring the costs and calibrating likelihood"):
            cost = self._cost(pair)
            likelihood = self._likelihood(cost)
        evidence = self._evidence(cost, likelihood)
        with self._reporter.busy("evaluating the probes"):
            report = evaluate(evidence, self._config.report.max_wrong_accepted)
        write_report(
            report, folder, examples_table(self._labels, evidence.served, report, self._texts)
        )
        if likelihood is not None:
            self._export_likelihood(likelihood)
        self._export(report, likelihood)
        sentences = "\n".join(verdict.sentence for verdict in report.verdicts)
        self._reporter.say(f"{sentences}\n{folder}/report.html; probes in {self._config.output}")

    @cached_property
    def _variants(self) -> Variants:
        """Domains are those with training, validation and calibration questions."""
        labels = self._labels
        splits = {"train", "validation", "calibration"} & set(labels.split.tolist())
        domains = sorted(
            set.intersection(
                *(set(labels.domain[labels.split == split].tolist()) for split in splits)
            )
        )
        return Variants.of(self._config, domains)

    @cached_property
    def _fitter(self) -> Fitter:
        digest = StageFolder(self._work / "labels").digest
        return Fitter(
            self._config,
            self._labels,
            self._store,
            self._infos(),
            digest,
            self._work / "probes",
            self._reporter,
        )

    def _infos(self) -> dict[str, ModelInfo]:
        """Return the infos of the models that computed the states. Raises: Mismatch when a model changed on the way."""
        folder = self._samples.folder
        first, *others = [
            manifest.facts["models"] for manifest in folder.manifests(folder.numbers())
        ]
        for role, fields in first.items():
            if any(other[role]["fingerprint"] != fields["fingerprint"] for other in others):
                raise Mismatch(
                    f"the {role}'s weights changed between two shards of {folder.path}",
                    remedy="delete the shards of the weights that will not be served and run the same command again",
                )
        return {role: info_of(fields) for role, fields in first.items()}

    @cached_property
    def _store(self) -> StateStore:
        return StateStore(self._samples.folder.path)

    @cached_property
    def _surprisal(self) -> NDArray[np.float32]:
        """Surprisal of the segments, `[num_segments, num_surprisal_features]`, aligned with the labels."""
        source = FeatureSource(self._store, "target", "surprisal", "all")
        surprisal: NDArray[np.float32] = source.read(
            self._labels, np.arange(len(self._labels))
        ).numpy()
        return surprisal

    @cached_property
    def _pilot(self) -> Pilot:
        return Pilot.of(self._labels, self._surprisal, self._config.likelihood.num_questions)

    def _calibrated(self, cost: Cost) -> LikelihoodReport:
        """Raises: InvalidRequest when nothing can be calibrated on the pilot."""
        config, pilot = self._config, self._pilot
        shards = np.unique(
            self._labels.shard[np.isin(self._labels.question, pilot.question)]
        ).tolist()
        digest = digest_of(
            [manifest.digest for manifest in self._clusters.folder.manifests(shards)]
        )
        limit = config.likelihood.max_wrong_accepted
        return calibrated(pilot, self._infos(), config.segmentation, cost, limit, digest)

    def _likelihood(self, cost: Cost) -> LikelihoodReport | None:
        """Calibrate for the report of probes; when the pilot does not allow it, report why and return None."""
        try:
            return self._calibrated(cost)
        except InvalidRequest as error:
            self._reporter.say(f"no calibration of likelihood: {error}")
            return None

    def _export_likelihood(self, found: LikelihoodReport) -> None:
        from semspec.training.evaluation.report import write_likelihood  # imports matplotlib

        write_likelihood(self._config.name, found, self._work / "likelihood")
        write_json(self._config.output / CALIBRATION_FILE, as_json(found.calibration))

    def _evidence(self, cost: Cost, likelihood: LikelihoodReport | None) -> Evidence:
        fitter, served, curve = self._fitter, self._variants.served, self._variants.curve
        variants = [fitter.predicted(variant) for variant in self._variants.compared]
        if likelihood is not None and self._config.report.variants:
            variants.append(predicted(self._labels, self._surprisal, likelihood.calibration))
        return Evidence(
            name=self._config.name,
            labels=self._labels,
            served=fitter.predicted(served),
            cost=cost,
            variants=variants,
            learning_curve=[
                (fitter.num_contexts(variant), fitter.predicted(variant))
                for variant in (*curve, served)
                if curve
            ],
            domains={
                str(variant.domain): fitter.predicted(variant) for variant in self._variants.domains
            },
            facts=self._facts(),
        )

    def _cost(self, pair: Pair, pilot: Sequence[int] = ()) -> Cost:
        """Return the costs, measured once on contexts of test questions, or of the shards `pilot`."""
        path = self._work / "cost.json"
        if not path.exists():
            numbers = pilot or self._samples.folder.numbers()
            contexts = [
                context for number in numbers for context in self._contexts.contexts(number)
            ]
            test = [context for context in contexts if pilot or context.question.split == "test"]
            timed_on = test[:: max(1, len(test) // NUM_TIMED_CONTEXTS)][:NUM_TIMED_CONTEXTS]
            write_json(
                path,
                asdict(
                    measure_cost(
                        pair, timed_on, self._config.segmentation, self._config.max_segment_tokens
                    )
                ),
            )
        try:
            return Cost(**read_json(path))
        except TypeError as error:
            raise Mismatch(
                f"{path} is damaged: it holds no costs", remedy=AGAIN.format(path)
            ) from error

    def _facts(self) -> dict[str, str | int | float]:
        """Return facts about the data's origin, for the report."""
        counted = self._clusters.counted()
        num_contexts = max(counted["num_contexts"], 1)
        facts: dict[str, str | int | float] = {
            "draft": self._config.draft.model,
            "target": self._config.target.model,
            "labels": self._config.probes.labels,
            "samples a context": 2 * self._config.samples.num_samples,
            "meanings a context": round(counted["num_clusters"] / num_contexts, 2),
            "singletons (no other sample of the writer means it; label 0)": f"{self._labels.singletons:.1%}",
            "data digest": self._fitter.data_digest,
        }
        left_out = {
            "segments cut by the token budget (no label)": counted["num_cut"],
            "segments too long for the entailment model (no label)": counted["num_too_long"],
            "contexts where no sample of the target has a label": counted["num_contexts"]
            - len(np.unique(self._labels.context)),
        }
        facts |= {name: number for name, number in left_out.items() if number}
        if counted["num_forwards"]:
            facts["entailment forwards a context"] = round(
                counted["num_forwards"] / num_contexts, 1
            )
        return facts

    def _texts(self, shard: int, row: int) -> tuple[str, str]:
        """Return the end of the reasoning before a segment, and the segment."""
        segment = self._samples.folder.rows(shard)[row]
        [context] = [
            context
            for context in self._contexts.contexts(shard)
            if context.id == segment["context"]
        ]
        return (context.reasoning or context.question.text)[-TAIL_CHARACTERS:], segment["text"]

    def _export(self, report: Report, likelihood: LikelihoodReport | None) -> None:
        """Write probes and cards before `pair.json`, which names them."""
        output, chosen = self._config.output, report.recommendation.chosen
        self._save(self._variants.served, report, output)
        for variant in self._variants.compared:
            if variant.name in ALTERNATIVES:
                self._save(variant, report, output / "alternatives" / ALTERNATIVES[variant.name])
        rule = self._default(chosen.rule if chosen else None, likelihood)
        release = export_release(self._config, rule)
        self._reporter.say(f"default of the release: {release.rule['strategy']}")

    def _save(self, variant: Variant, report: Report, folder: Path) -> None:
        metrics = self._metrics(report, variant.name)
        for role in ("draft", "target"):
            fitted = self._fitter.fitted(role, variant)
            save_probe(
                fitted.probe,
                replace(fitted.card, metrics=metrics),
                folder / f"{role}.safetensors",
                torch.float16,
            )

    def _metrics(self, report: Report, name: str) -> dict[str, Any]:
        """Return the metrics in a probe's card; the report has all of them."""
        [variant] = [variant for variant in report.as_json()["variants"] if variant["name"] == name]
        verification = variant["verifications"][report.criterion]
        metrics = {
            "num_contexts": sum(report.counts.contexts.values()),
            "verdicts": [
                {"criterion": verdict.criterion, "standing": verdict.standing, "text": verdict.text}
                for verdict in report.verdicts
            ],
            "right_means": report.criterion,
            "auroc": verification["auroc"]["value"],
            "wrong_accepted_at_95_right": verification["wrong_accepted"]["value"],
            "ece": {use: error["value"] for use, error in variant["ece"].items()},
            "strictness": card_curve(report.recommendation.curve),
        }
        of_served_only = () if name == SERVED else ("verdicts", "strictness")
        return {key: value for key, value in metrics.items() if key not in of_served_only}
