"""The record of one generation: a line of `records.jsonl`."""

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from semspec.errors import InvalidRequest
from semspec.files import parse_json
from semspec.reporting.files import complete_lines, replacing

Json = dict[str, Any]

RECORDS = "records.jsonl"
"""File in a run's folder with one line per generation."""
ANSWERS = ".jsonl.gz"
"""End of the name of a file with the answers of a report's run."""

STAGES = ("draft_ms", "read_ms", "judge_ms", "write_ms")
"""Consecutive stages; `wire_ms` is the part of their sum outside the engines."""


@dataclass(frozen=True, slots=True)
class Record:
    """One configuration's answer to one question."""

    label: str
    question: str
    """The question's id within the task."""
    sample: int
    """Index among the k answers to the question."""
    seed: int
    """The request's seed, the same for all configurations."""
    is_right: bool
    finish_reason: str
    latency_s: float
    """Time at the client from the request to the whole answer."""
    num_prompt_tokens: int
    num_tokens: int
    num_target_tokens: int | None
    """Tokens written by the target, or sampled by it after a rejection; None where a peer does not report it."""
    num_accepted: int
    num_rejected: int
    num_proposed_tokens: int
    num_accepted_tokens: int
    stages_ms: Mapping[str, float]
    """Wall time by stage, summed over the trace; empty for peers."""
    text_digest: str
    """Digest of the answer's text."""
    trace: Sequence[Json]
    """The segments' records from the gateway, without token ids."""

    @property
    def key(self) -> tuple[str, str, int]:
        return self.label, self.question, self.sample


def as_line(record: Record) -> str:
    """Return the record as a line of `records.jsonl`."""
    return json.dumps(asdict(record)) + "\n"


def read_records(path: Path) -> list[Record]:
    """Read `records.jsonl`, from which an incomplete last line is removed, or a file of `write_answers`."""
    if path.name.endswith(ANSWERS):
        return [_record(path, line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    return [_record(path, line) for line in complete_lines(path)] if path.exists() else []


def _record(path: Path, line: bytes) -> Record:
    try:
        return Record(**parse_json(line.decode()))
    except (ValueError, TypeError) as error:
        raise InvalidRequest(
            f"{path} is damaged: {error}", remedy="run this part of the bench again"
        ) from error


def write_answers(path: Path, records: Iterable[Record], with_traces: bool = False) -> None:
    """Write records to `path`, a `.jsonl.gz`, which is long with their traces; equal records give equal bytes."""
    lines = "".join(
        as_line(record if with_traces else replace(record, trace=())) for record in records
    )
    with replacing(path) as partial:
        partial.write_bytes(gzip.compress(lines.encode(), mtime=0))
