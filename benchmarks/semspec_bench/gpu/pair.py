"""A few questions to a pair's checkpoints through the running stack, where they are on this machine."""

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from semspec.commands.plan import layouts, read_model, settings
from semspec.engine.architecture import context_window
from semspec.engine.hub import format_bytes, look_up
from semspec.errors import Mismatch
from semspec.pairs import ROLES
from semspec.reporting.files import read_json
from semspec.reporting.progress import Reporter
from semspec.stack import BUNDLED_PAIR
from semspec_bench.configuration import parse
from semspec_bench.gpu.engines import CPU_KV_BYTES
from semspec_bench.gpu.record import Facts
from semspec_bench.gpu.shapes import PAPER, Scale
from semspec_bench.record import RECORDS, Record, read_records, write_answers
from semspec_bench.run import Plan, run_plans
from semspec_bench.tasks import load_task

HUB_PAIR = ",".join(f"deepseek-ai/{shape.name}" for shape in (PAPER.draft, PAPER.target))
SMALL_HUB_PAIR = "HuggingFaceTB/SmolLM2-135M-Instruct,Qwen/Qwen2.5-Coder-0.5B-Instruct"
STRATEGIES = "target", "draft", "token-level", "spec-reason", "semantic"
"""The last one needs probes; a strategy that the pair does not support is skipped, with the reason."""
CONTEXT, SESSIONS = 4096, 2


def link_pair(pair: str, output: Path) -> Path:
    """Make a folder of links to a pair: a folder with draft/, target/ and perhaps probes/, or two checkpoints separated
    by a comma. Raises: Mismatch when one is not on this machine."""
    base = Path(pair).absolute()
    models = pair.split(",") if "," in pair else [str(base / role) for role in ROLES]
    if len(models) != len(ROLES):
        raise Mismatch(f"--pair {pair}: give a folder, or two checkpoints: DRAFT,TARGET")
    folder = folder_of(pair, output)
    folder.mkdir(parents=True, exist_ok=True)
    targets = {}
    for role, model in zip(ROLES, models, strict=True):
        found = look_up(model)
        if found.missing_bytes:
            raise Mismatch(
                f"{format_bytes(found.missing_bytes)} of {model} are not on this machine: `hf download {model}`"
            )
        targets[role] = found.folder.resolve()
    if (base / "probes").is_dir():
        targets["probes"] = base / "probes"
    for name, target in targets.items():
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target, target_is_directory=True)
    return folder


def folder_of(pair: str, output: Path) -> Path:
    """Return the folder of a pair's links and answers."""
    return output / f"pair-{re.sub(r'[^A-Za-z0-9.]+', '-', Path(pair).name)}"


def measure_answers(folder: Path, gpus: Sequence[int], scale: Scale, data: str | None) -> None:
    """Ask one after another, with the services as `semspec plan` lays them out over `gpus`, bytes of each; none: on the
    CPU. A run that was interrupted goes on. Raises: Mismatch when the pair does not fit."""
    os.environ |= dict(_services(folder, gpus))
    is_bundled = (folder / "target").resolve() == BUNDLED_PAIR / "target"
    task = load_task("demo" if is_bundled else "math500", data=data, limit=scale.num_questions)
    plan = Plan(
        task, [*map(parse, STRATEGIES)], folder, task.temperature, task.top_p, scale.answer_tokens
    )
    run_plans({folder / "run": plan}, Reporter())


def _services(folder: Path, gpus: Sequence[int]) -> Iterator[tuple[str, str]]:
    """Settings of the services."""
    if not gpus:
        for role in ("DRAFT", "TARGET"):
            yield from (
                (f"SEMSPEC_{role}_ENGINE", "vllm"),
                (f"SEMSPEC_{role}_KV_BYTES", str(CPU_KV_BYTES)),
                (f"SEMSPEC_{role}_MAX_CONTEXT_TOKENS", str(CONTEXT)),
            )
        return
    draft, target = (read_model(str(folder / role)) for role in ROLES)
    context = min(CONTEXT, *(context_window(model.config) for model in (draft, target)))
    fitting = (
        candidate
        for candidate in layouts(draft, target, gpus, context, SESSIONS)
        if candidate.num_tokens >= SESSIONS * context
    )
    if (layout := next(fitting, None)) is None:
        raise Mismatch(
            f"the pair does not fit on {len(gpus)} x {gpus[0] >> 30} GiB: `semspec plan` says what does"
        )
    print(f"as planned: {layout}", flush=True)
    for name, _, value in (
        line.partition("=") for line in settings(layout, context) if line[0] != "#"
    ):
        yield name, value.strip("'")
    yield "SEMSPEC_VERIFIER_DEVICE", "cuda:0"


def rows_of(folder: Path) -> Facts:
    """Sum up the run so far by strategy, and write its answers without texts, for the bundle."""
    path, records = folder / "run" / "run.json", read_records(folder / "run" / RECORDS)
    write_answers(folder / "answers.jsonl.gz", records)
    by_label = defaultdict[str, list[Record]](list)
    for record in records:
        by_label[record.label].append(record)
    rows: list[Facts] = [{"what": label, **_sums(group)} for label, group in by_label.items()]
    refused = read_json(path)["not_applicable"] if path.exists() else {}
    return {
        "pair": folder.name,
        "rows": rows + [{"what": label, "said": why} for label, why in refused.items()],
    }


def _sums(records: Sequence[Record]) -> Facts:
    return {
        "num_answers": len(records),
        "num_whole": sum(record.finish_reason == "stop" for record in records),
        "num_right": sum(record.is_right for record in records),
        "num_tokens": sum(record.num_tokens for record in records),
        "seconds": round(sum(record.latency_s for record in records), 3),
        "num_target_tokens": sum(record.num_target_tokens or 0 for record in records),
        "num_accepted": sum(record.num_accepted for record in records),
        "num_rejected": sum(record.num_rejected for record in records),
    }
