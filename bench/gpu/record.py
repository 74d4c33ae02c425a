"""The record of a run: stages within a time budget, saved after each; and what one stage has found so far."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

Facts = dict[str, Any]


class Record:
    """Writes `gpu.json` in a folder, complete after every stage.

    A stage that fails or does not fit into the time is recorded, and the next one runs.
    """

    def __init__(self, folder: Path, head: Facts, budget_s: float) -> None:
        self._folder, self._start, self._budget_s = folder, perf_counter(), budget_s
        self._document: Facts = {**head, "budget_s": budget_s, "seconds": 0.0, "stages": {}}
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def left_s(self) -> float:
        return self._budget_s - (perf_counter() - self._start)

    @property
    def stages(self) -> Facts:
        """By name: `status`, `seconds`, and `facts` or `reason`."""
        stages: Facts = self._document["stages"]
        return stages

    def stage(self, name: str, least_s: float, limit_s: float, run: Callable[[float], Facts]) -> None:
        """Record what `run` returns, given the seconds it may take; skipped when less than `least_s` are left."""
        start = perf_counter()
        if self.left_s < least_s:
            row: Facts = {"status": "skipped", "reason": f"{self.left_s:.0f} s were left, it wants {least_s:.0f}"}
        else:
            row = run(min(limit_s, self.left_s))
        self.stages[name] = row | {"seconds": round(perf_counter() - start, 2)}
        self._document["seconds"] = round(self._budget_s - self.left_s, 1)
        write_json(self._folder / "gpu.json", self._document)
        reason = f" ({row['reason']})" if "reason" in row else ""
        print(f"{name}: {row['status']} after {perf_counter() - start:.0f} s{reason}", flush=True)


def summary(stages: Facts) -> Iterator[str]:
    """A line a row of the results."""
    for name, stage in stages.items():
        for row in stage.get("facts", {}).get("rows", []):
            if "ms" in row:
                work = f"{row['streams']} x {row['tokens']:,} tokens after {row['context']:,}"
                states = ", states" if row.get("states") else ""
                floor = f", {row['share_of_floor']:.0%} of the floor" if "share_of_floor" in row else ""
                yield f"{name}, {row['what']}, {work}{states}: {row['ms']['median']:.1f} ms{floor}"
            else:
                yield f"{name}, {row['what']}: {'holds' if row['holds'] else 'DOES NOT HOLD'}"


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


def write_json(path: Path, document: Facts) -> None:
    """Replace the file atomically, so that an interrupted run leaves the last complete one."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(document, indent=2) + "\n")
    partial.replace(path)
