"""The record of a run: stages within a time budget, saved after each."""

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
    def has_failed(self) -> bool:
        return any(stage["status"] == "failed" for stage in self._document["stages"].values())

    def facts(self, name: str) -> Facts | None:
        """A stage's results; None if it has none."""
        stage = self._document["stages"].get(name, {})
        facts: Facts | None = stage.get("facts")
        return facts

    def stage(self, name: str, least_s: float, work: Callable[[], Facts], needs: tuple[str, ...] = ()) -> Facts | None:
        """The results of `work`, or None. Skipped with less than `least_s` seconds left or without its `needs`."""
        start = perf_counter()
        row = self._outcome(least_s, work, needs)
        row["seconds"] = round(perf_counter() - start, 2)
        self._document["stages"][name] = row
        self._write()
        print(f"{name}: {row['status']} in {row['seconds']} s{_reason(row)}; {self.left_s:.0f} s left", flush=True)
        return self.facts(name)

    def _outcome(self, least_s: float, work: Callable[[], Facts], needs: tuple[str, ...]) -> Facts:
        if missing := [need for need in needs if self.facts(need) is None]:
            return {"status": "skipped", "reason": f"it needs {', '.join(missing)}"}
        if self.left_s < least_s:
            return {"status": "skipped", "reason": f"{self.left_s:.0f} s were left, it wants {least_s:.0f}"}
        try:
            return {"status": "done", "facts": work()}
        except Exception as error:  # a failed stage must not stop the others
            return {"status": "failed", "reason": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"}

    def _write(self) -> None:
        self._document["seconds"] = round(self._budget_s - self.left_s, 1)
        _replace(self._folder / "gpu.json", (json.dumps(self._document, indent=2) + "\n").encode())

    def summary(self) -> Iterator[str]:
        """Lines with the main results of the finished stages."""
        decode, read = self.facts("decode") or {}, self.facts("read") or {}
        for role in ("draft", "target"):
            for way, row in decode.get(role, {"ways": {}})["ways"].items():
                yield f"{role}, {way}: {row['tokens_per_s']:,.0f} tokens/s, {row['share_of_floor']:.0%} of the floor"
        for context in read.get("contexts", ()):
            steps = ", ".join(f"{row['num_tokens']}: {row['decode_steps']['all']:.1f}" for row in context["reads"])
            yield f"scoring after {context['context']:,} tokens, in decode steps by length: {steps}"


def _reason(row: Facts) -> str:
    return f" ({row['reason']})" if "reason" in row else ""


def _replace(path: Path, data: bytes) -> None:
    """Replace the file atomically, so that an interrupted run leaves the last complete one."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(data)
    partial.replace(path)
