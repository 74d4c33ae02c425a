"""The preset `laptop`: a smaller run, of as many questions as a pilot says take an hour."""

import sys
from collections import Counter
from pathlib import Path

from semspec.errors import InvalidRequest
from semspec.reporting.files import read_json, write_json
from semspec.reporting.progress import Reporter, duration
from semspec.training.config import PipelineConfig, QuestionSource
from semspec.training.data.questions import gather
from semspec.training.data.stages import Questions
from semspec.training.pipeline import Pipeline

BUDGET_S = 3600.0
PILOT_LIMIT_S = 300.0
"""Limit of the pilot: a pair that takes longer is too slow for a run of an hour."""
LEAST_QUESTIONS, MOST_QUESTIONS = 40, 480
"""Bounds of the number of questions: fewer are too few to calibrate on; the bundled probes learn from 480."""


def scale_to_budget(
    config: PipelineConfig, work: Path, reporter: Reporter, can_start: bool = True
) -> PipelineConfig:
    """Limit `config` to as many questions as take `BUDGET_S` by an estimate, which is reported and kept in `work`.

    Raises: InvalidRequest when `work` has no estimate and this command (a worker, `status` or `check`) cannot make it.
    """
    kept = work / "preset.json"
    if not kept.exists():
        if not can_start:
            raise InvalidRequest(
                f"{work} has no run with this preset yet: `semspec train estimate --preset laptop` with the same "
                "--config and --work chooses its number of questions"
            )
        config = limit_questions(config, MOST_QUESTIONS)
        pilot = Pipeline(config, work, reporter=reporter)
        questions, _ = gather(config.questions, config.evaluation_sets, config.shares)
        pilot.questions = Questions(questions, config.shard_questions)
        pilot.check_start(range(len(pilot.questions)))
        reporter.say(
            f"a pilot of a few questions, at most {duration(PILOT_LIMIT_S)}, estimates the time first; Ctrl-C stops, "
            "nothing is lost"
        )
        estimate = pilot.estimate(limit_s=PILOT_LIMIT_S)
        has_own_test = any(source.role == "test" for source in config.questions)
        num_all = sum(question.split != "test" or not has_own_test for question in questions)
        num = min(num_all, max(LEAST_QUESTIONS, int(num_all * BUDGET_S / estimate.total_s)))
        scaled_estimate = estimate.times(num / num_all)
        reporter.say(str(scaled_estimate))
        write_json(kept, {"num_questions": num, "time": scaled_estimate.time, "is_agreed": False})
    return limit_questions(config, read_json(kept)["num_questions"])


def describe_estimate(work: Path) -> str:
    """Return the estimate that `scale_to_budget` kept in `work`, in one line."""
    kept = read_json(work / "preset.json")
    return f"{kept['num_questions']} questions: {kept.get('time', 'of unknown time')}"


def confirm_run(work: Path, is_agreed: bool, reporter: Reporter) -> None:
    """Ask whether to begin the run whose estimate `scale_to_budget` kept in `work`, unless that was agreed before.

    Raises: InvalidRequest when the user declines, or there is no terminal to ask on.
    """
    kept = read_json(work / "preset.json")
    if kept.get("is_agreed", True):  # a run that was begun by an earlier version does not know it
        return
    if not is_agreed:
        alternative = "`semspec train calibrate --from-prompts` gives a rule in minutes"
        if not sys.stdin.isatty():
            raise InvalidRequest(
                f"the run takes {kept['time']}", remedy=f"say --yes to begin it; {alternative}"
            )
        reporter.say(f"The run takes {kept['time']}. Begin? [y/N]")
        if sys.stdin.readline().strip().casefold() not in ("y", "yes"):
            raise InvalidRequest("not begun", remedy=f"the same command asks again; {alternative}")
    reporter.say("Ctrl-C stops; the same command continues")
    write_json(work / "preset.json", kept | {"is_agreed": True})


def laptop_preset(config: PipelineConfig) -> PipelineConfig:
    """Return `config` with at most 4 contexts a question and 10 samples of each model there, without the report's
    alternatives and under its own name."""
    contexts, samples = config.contexts, config.samples
    return config.model_copy(
        update={
            "name": f"{config.name}-laptop",
            "contexts": contexts.model_copy(
                update={"per_question": min(contexts.per_question or 4, 4)}
            ),
            "samples": samples.model_copy(
                update={"num_samples": min(samples.num_samples, 10), "num_test_samples": None}
            ),
            "report": config.report.model_copy(update={"variants": False, "learning_curve": ()}),
        }
    )


def limit_questions(config: PipelineConfig, num_questions: int) -> PipelineConfig:
    """Return `config` with at most this many questions, and a quarter as many from sources for the report only."""
    num_sources = Counter(source.role for source in config.questions)
    most = {"train": num_questions, "test": num_questions // 4}

    def cut(source: QuestionSource) -> QuestionSource:
        limit = max(1, most[source.role] // num_sources[source.role])
        return source.model_copy(update={"limit": min(source.limit or limit, limit)})

    return config.model_copy(update={"questions": tuple(map(cut, config.questions))})
