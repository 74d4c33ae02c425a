"""The command `semspec train`: trains the probes of a model pair."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers

from semspec.engine import hub
from semspec.errors import InvalidRequest, Mismatch, SemspecError
from semspec.release import RELEASE_FILE
from semspec.reporting.progress import Reporter
from semspec.training import from_prompts
from semspec.training.config import DatastoreConfig, load_config, read_config
from semspec.training.datastore import DatastoreBuild
from semspec.training.export import export_release
from semspec.training.pipeline import Pipeline
from semspec.training.preset import confirm_run, describe_estimate, laptop_preset, scale_to_budget

COMMANDS = {
    "run": "run the missing stages; with --shard i/n only this worker's share of the sharded stages",
    "calibrate": "calibrate the strategy likelihood, by a pilot or from prompts alone, to serve a pair without probes",
    "export": "write pair.json for the probes in `output`, for example after a change of name or version",
    "estimate": "estimate time and disk of the whole run from a pilot of a minute or more",
    "status": "show how many shards of each stage are finished",
    "datastore": "build a datastore of the target's answers, for the strategy `retrieval`",
    "check": "read every file and compare it with its digest",
}


def main(arguments: Sequence[str]) -> None:
    """`semspec train COMMAND --config FILE`. Exits 1 on a failure that a retry may fix, 2 on any other."""
    options = parser().parse_args(arguments)
    quiet_libraries()
    reporter = Reporter()
    try:
        sys.exit(_run(options, reporter))
    except SemspecError as error:
        code, reason = 2 if isinstance(error, InvalidRequest | Mismatch) else 1, str(error)
    except OSError as error:  # for example a folder of another user, or a full disk
        code, reason = (
            1,
            f"{error.filename or 'the disk'}: {error.strerror or error}; nothing is half-written",
        )
    except torch.OutOfMemoryError as error:
        code, reason = (
            1,
            f"{str(error).splitlines()[0]} Lower samples.rows_at_once or equivalence.batch_size",
        )
    except KeyboardInterrupt:
        code, reason = 130, "stopped; run the same command to resume"
    reporter.say(f"semspec train: {reason}")
    sys.exit(code)


def _run(options: argparse.Namespace, reporter: Reporter) -> int:
    if options.command == "calibrate" and options.from_prompts is not None:
        if options.config is not None or options.shard != (0, 1):
            raise InvalidRequest(
                "--from-prompts excludes --config and --shard", remedy="leave them out"
            )
        print(from_prompts.run(options, reporter))
        return 0
    if options.config is None:
        raise InvalidRequest(
            "--config: missing", remedy="give a configuration, or prompts alone by --from-prompts"
        )
    torch.set_num_threads(options.threads or max(os.cpu_count() or 1, 1))
    if options.command == "datastore":
        built = read_config(options.config, DatastoreConfig)
        work = options.work or Path(".work") / f"datastore-{built.name}"
        DatastoreBuild(built, work, options.shard, reporter).run()
        return 0
    config = load_config(options.config)
    if options.preset:
        config = laptop_preset(config)
    work = options.work or Path(".work") / f"probes-{config.name}"
    if options.preset:
        can_start = options.command not in ("status", "check") and options.shard == (0, 1)
        config = scale_to_budget(config, work, reporter, can_start)
        if options.command == "run":
            confirm_run(work, options.yes, reporter)
        if options.command == "estimate":
            print(describe_estimate(work))
            return 0
    pipeline = Pipeline(config, work, options.shard, reporter)
    match options.command:
        case "run":
            pipeline.run()
        case "calibrate":
            pipeline.calibrate()
        case "export":
            reporter.say(f"{export_release(config).label}: {config.output / RELEASE_FILE}")
        case "estimate":
            print(pipeline.estimate())
            print("an hour of it, from fewer questions: --preset laptop")
        case "status":
            print("\n".join(pipeline.status()))
        case "check":
            damaged = pipeline.damaged()
            print("\n".join(damaged) or "every file is as its manifest says")
            return 1 if damaged else 0
    return 0


def quiet_libraries() -> None:
    """Limit the libraries' logs to warnings."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger(hub.__name__).setLevel(logging.INFO)
    transformers.utils.logging.disable_progress_bar()


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="semspec train", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        _add_options(command, name)
    return parser


def _add_options(parser: argparse.ArgumentParser, command: str) -> None:
    kind = "datastore" if command == "datastore" else "probes"
    parser.add_argument(
        "--config",
        type=Path,
        required=command != "calibrate",
        metavar="FILE",
        help="YAML file; see semspec/training/configs/",
    )
    parser.add_argument(
        "--work", type=Path, help=f"folder of the stages' files (default: .work/{kind}-NAME)"
    )
    parser.add_argument(
        "--threads",
        type=int,
        help="CPU threads (default: all cores; with --from-prompts as when served)"
        if command == "calibrate"
        else "CPU threads (default: all cores)",
    )
    parser.set_defaults(shard=(0, 1), preset=None)
    if command == "calibrate":
        from_prompts.add_options(parser)
    if command in ("run", "calibrate", "datastore"):
        parser.add_argument(
            "--shard", type=shard, metavar="i/n", help="this worker's share, i from 0"
        )
    if command not in ("calibrate", "datastore"):
        parser.add_argument(
            "--preset",
            choices=["laptop"],
            help="laptop: as many questions as a pilot says take an hour; `run` shows the estimate and asks first",
        )
    if command == "run":
        parser.add_argument(
            "--yes", action="store_true", help="start the preset's run without asking"
        )


def shard(text: str) -> tuple[int, int]:
    """Parse `i/n` with 0 <= i < n."""
    try:
        index, total = map(int, text.split("/"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: expected i/n, such as 0/4") from None
    if not 0 <= index < total:
        raise argparse.ArgumentTypeError(f"{text}: expected 0 <= i < n")
    return index, total
