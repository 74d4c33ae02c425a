"""The record of a run: stages within a time budget, saved after each; and what one stage has found so far."""

import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

from semspec.reporting.files import read_json, write_json

Facts = dict[str, Any]
LEAST_SECRET = 6
"""Characters; shorter values of environment variables are not looked for."""


class Record:
    """Writes `gpu.json` in a folder, complete after every stage.

    A stage that fails or does not fit into the time is recorded, and the next one runs. What a run with the same `head`
    has done in the folder before stays.
    """

    def __init__(self, folder: Path, head: Facts, budget_s: float) -> None:
        self._path, self._start, self._budget_s = folder / "gpu.json", perf_counter(), budget_s
        self._document: Facts = {**head, "seconds": 0.0, "stages": {}}
        if self._path.exists():
            known = read_json(self._path)
            if differing := [name for name in head if known.get(name) != head[name]]:
                print(
                    f"{self._path} has another {' and '.join(differing)}: its stages are measured again",
                    flush=True,
                )
                for pair in folder.glob("pair-*"):
                    shutil.rmtree(pair)
            else:
                self._document = known

    @property
    def left_s(self) -> float:
        return self._budget_s - (perf_counter() - self._start)

    @property
    def stages(self) -> Facts:
        """Return the stages by name: `status`, `seconds`, and `facts` or `reason`."""
        stages: Facts = self._document["stages"]
        return stages

    def stage(
        self, name: str, least_s: float, limit_s: float, run: Callable[[float], Facts]
    ) -> None:
        """Record what `run` returns, given the seconds it may take; skipped when less than `least_s` are left, or when
        it is done."""
        if self.stages.get(name, {}).get("status") == "done":
            return print(f"{name}: done before", flush=True)
        start = perf_counter()
        if self.left_s < least_s:
            row: Facts = {
                "status": "skipped",
                "reason": f"{self.left_s:.0f} s were left, it needs {least_s:.0f}",
            }
        else:
            row = run(min(limit_s, self.left_s))
        if "reason" in row:
            row["reason"] = without_secrets(row["reason"])
        seconds = perf_counter() - start
        self.stages[name] = row | {"seconds": round(seconds, 2)}
        self._document["seconds"] = round(self._document["seconds"] + seconds, 1)
        write_json(self._path, self._document)
        reason = f" ({row['reason']})" if "reason" in row else ""
        print(f"{name}: {row['status']} after {seconds:.0f} s{reason}", flush=True)


def without_secrets(text: str) -> str:
    """Replace the values of environment variables and the home folder in `text` by their names."""
    names = {value: f"${name}" for name, value in os.environ.items()} | {str(Path.home()): "~"}
    for value in sorted(names, key=len, reverse=True):
        text = text.replace(value, names[value]) if len(value) >= LEAST_SECRET else text
    return text


def summary(stages: Facts) -> Iterator[str]:
    """Yield a line for each row of the results."""
    for name, stage in stages.items():
        for row in stage.get("facts", {}).get("rows", []):
            if "ms" in row:
                work = f"{row['streams']} x {row['tokens']:,} tokens after {row['context']:,}"
                states = ", states" if row.get("states") else ""
                floor = (
                    f", {row['share_of_floor']:.0%} of the floor" if "share_of_floor" in row else ""
                )
                result = f", {work}{states}: {row['ms']['median']:.1f} ms{floor}"
            elif "num_whole" in row:
                rate, cut = (
                    row["num_tokens"] / row["seconds"],
                    row["num_answers"] - row["num_whole"],
                )
                result = f": {row['num_answers']} answers, {cut} cut, {row['num_right']} right, {rate:.1f} tokens/s"
            else:
                numbers = (
                    f", {row['planned']:,} planned, {row['measured']:,} measured"
                    if "planned" in row
                    else ""
                )
                result = f"{numbers}: {row.get('result') or ('holds' if row['holds'] else 'DOES NOT HOLD')}"
            yield f"{name}, {row['what']}{result}"


def holds(stages: Facts) -> bool:
    """Return whether no stage failed and every comparison holds."""
    rows = [row for stage in stages.values() for row in stage.get("facts", {}).get("rows", [])]
    return "failed" not in [stage["status"] for stage in stages.values()] and all(
        row.get("holds", True) for row in rows
    )


def bundle(folder: Path) -> Path:
    """Write one file to send: the record, its summary, and answers without texts; no logs, and no names of users."""
    path = folder / "bundle.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for file_path in (
            folder / "gpu.json",
            folder / "summary.txt",
            *sorted(folder.glob("pair-*/answers.jsonl.gz")),
        ):
            info = tarfile.TarInfo(str(file_path.relative_to(folder)))
            info.size = file_path.stat().st_size
            with file_path.open("rb") as file:
                tar.addfile(info, file)
    return path


class Results:
    """A stage's rows, in a file that its parent reads however the stage ends."""

    def __init__(self, path: Path) -> None:
        self._path, self.facts = path, Facts(rows=[])

    def note(self, **facts: Any) -> None:
        """Facts about the whole stage."""
        self.facts |= facts
        write_json(self._path, self.facts)

    def row(self, what: str, **values: Any) -> None:
        self.facts["rows"].append({"what": what, **values})
        write_json(self._path, self.facts)
