"""The simulator against paced runs: the same answers, segment by segment, and the same dilation."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from semspec.errors import InvalidRequest
from semspec_bench.configuration import parse
from semspec_bench.pace.counts import MAX_LATE_SHARE, Counts
from semspec_bench.pace.table import Pace, load_pace
from semspec_bench.record import RECORDS, STAGES, Record, read_records
from studies.simulate.engines import Host
from studies.simulate.simulator import STRATEGIES, Result, Setup, simulate
from studies.simulate.workload import recorded

ALLOWED = 0.1
"""Largest relative difference at which a prediction holds."""


@dataclass(frozen=True, slots=True)
class PacedRun:
    """The records of a paced run."""

    folder: Path
    pace: Pace
    dilation: float
    num_sessions: int
    gamma: int
    """Of configurations that do not say theirs."""
    labels: Sequence[str]
    """Configurations that can be simulated."""
    records: Sequence[Record]
    late_shares: Mapping[str, float]
    """Share of late steps by label, of the engine that has the largest."""

    def of(self, label: str) -> list[Record]:
        return [record for record in self.records if record.label == label]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One configuration, measured and simulated."""

    run: PacedRun
    label: str
    num_answers: int
    measured_tokens_per_s: float
    simulated: Result

    @property
    def difference(self) -> float:
        """Relative difference of the simulated tokens/s from the measured ones."""
        return self.simulated.tokens_per_s / self.measured_tokens_per_s - 1

    @property
    def late_share(self) -> float:
        return self.run.late_shares.get(self.label, 0.0)

    @property
    def holds(self) -> bool:
        """Whether the host kept the pace, so that there is a measurement, and the simulation meets it."""
        return self.late_share <= MAX_LATE_SHARE and abs(self.difference) <= ALLOWED


def load_paced_run(folder: Path) -> PacedRun:
    """Raises: InvalidRequest when the folder has no paced run, or one of other tables."""
    path = folder / "run.json"
    facts = json.loads(path.read_text()) if path.is_file() else {}
    paced: dict[str, Any] | None = facts.get("settings", {}).get("paced")
    if paced is None:
        raise InvalidRequest(
            f"{folder} has no paced run; make one with `semspec bench run --pace NAME`"
        )
    pace = load_pace(paced["name"])
    tables = {"draft": pace.draft, "target": pace.target}
    if other := [
        role for role, table in tables.items() if paced["tables"][role]["digest"] != table.digest
    ]:
        raise InvalidRequest(f"{folder} was paced by another table of the {other[0]}; run it again")
    labels = [label for label in facts["labels"] if parse(label).method in STRATEGIES]
    records = read_records(folder / RECORDS)
    gamma = int(paced["serving"].get("gamma", 1))
    late_shares = {
        label: max(Counts(**counts).late_share for counts in roles.values())
        for label, roles in facts.get("steps", {}).items()
    }
    return PacedRun(
        folder,
        pace,
        paced["dilation"],
        facts["settings"]["sessions"],
        gamma,
        labels,
        records,
        late_shares,
    )


def host_of(run: PacedRun) -> Host:
    """What the host took in a run with one session, undilated. Raises: InvalidRequest when that cannot be told.

    The target alone has one call an answer, so what is outside its stages is an answer's part; what `semantic` has
    beyond that is a round's. Calls that begin ahead hide their part of the wire: they count as the others.
    """
    semantic, alone = run.of("semantic"), run.of("target")
    if run.num_sessions != 1 or not (semantic and alone):
        raise InvalidRequest(
            f"{run.folder} needs answers of target and semantic in one session; run them"
        )
    answer_ms = fmean(map(_other_ms, alone))
    num_rounds = fmean(_num_rounds(record, run.gamma) for record in semantic)
    num_rejected = fmean(record.num_rejected for record in semantic)
    stages = {
        name: fmean(record.stages_ms[name] for record in semantic) for name in (*STAGES, "wire_ms")
    }
    num_waited = (
        num_rounds + 2 * num_rejected + 1
    )  # scores, rewrites and drafts after them, the first draft
    call_ms = (stages["wire_ms"] - stages["judge_ms"]) / num_waited
    judge_ms = (stages["judge_ms"] + fmean(map(_other_ms, semantic)) - answer_ms) / num_rounds
    return Host(*(run.dilation * max(0.0, one) for one in (call_ms, judge_ms, answer_ms)))


def _num_rounds(record: Record, gamma: int) -> int:
    """Rounds of `gamma` drafted segments, each up to its first rejection."""
    num_rounds = num_in_round = 0
    for row in record.trace:
        num_rounds += num_in_round == 0
        num_in_round = 0 if row["verdict"] == "rewritten" else (num_in_round + 1) % gamma
    return num_rounds


def _other_ms(record: Record) -> float:
    """The part of the latency outside all stages."""
    return 1e3 * record.latency_s - sum(record.stages_ms[name] for name in STAGES)


def validate(runs: Sequence[PacedRun], host: Host) -> Iterator[Comparison]:
    """Simulate each configuration of each run with its own answers. Raises: InvalidRequest."""
    for run in runs:
        for label in run.labels:
            configuration, records = parse(label), run.of(label)
            if not records:
                continue
            setup = Setup(
                run.pace, configuration.method, run.num_sessions, host=host, dilation=run.dilation
            )
            setup = replace(
                setup,
                gamma=configuration.knobs.get("gamma", run.gamma),
                draft_ahead=configuration.knobs.get("ahead", "on") == "on",
            )
            result = simulate(setup, recorded(run.records, label))
            num_tokens = sum(record.num_tokens for record in records)
            measured = run.num_sessions * num_tokens / sum(record.latency_s for record in records)
            yield Comparison(run, label, len(records), measured, result)
