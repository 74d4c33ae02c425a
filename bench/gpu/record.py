"""The record of a run: stages within a time budget, saved and plotted after each."""

import json
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from matplotlib.axes import Axes

from semspec.training.report.drawing import BLACK, BLUE, GREY, ORANGE, SKY, panels, png, styled

Facts = dict[str, Any]

WAYS = ("transformers", "eager", "graph", "engine")


class Record:
    """Writes `gpu.json` and `gpu.png` in a folder, complete after every stage.

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
        if not any("facts" in row for row in self._document["stages"].values()):
            return
        try:
            picture = draw(self._document)
        except Exception as error:  # nor must a failed picture
            self._document["picture"] = f"not drawn: {type(error).__name__}: {error}"
        else:
            _replace(self._folder / "gpu.png", picture)


def _reason(row: Facts) -> str:
    return f" ({row['reason']})" if "reason" in row else ""


def _replace(path: Path, data: bytes) -> None:
    """Replace the file atomically, so that an interrupted run leaves the last complete one."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(data)
    partial.replace(path)


def draw(document: Facts) -> bytes:
    """A PNG of the record so far."""
    stages = {name: row["facts"] for name, row in document["stages"].items() if "facts" in row}
    painters: tuple[Callable[[Axes, Facts], None], ...] = (_decoding, _reading)
    with styled():
        figure, axes = panels(2, (13, 4.6))
        for panel, painter in zip(axes, painters, strict=True):
            try:
                painter(panel, stages)
            except (KeyError, IndexError):
                panel.text(0.5, 0.5, "not measured", ha="center", va="center", transform=panel.transAxes, color=GREY)
        figure.suptitle(_title(document, stages))
        return png(figure)


def _title(document: Facts, stages: Facts) -> str:
    title = f"{document['environment']['device']}, random weights, bf16"
    if "models" in stages:
        shapes = [stages["models"][role] for role in ("draft", "target")]
        title += ": " + ", ".join(f"{shape['name']} ({shape['num_layers']} layers)" for shape in shapes)
    if "speed of light" in stages:
        light = stages["speed of light"]
        title += f"\ncopy {light['bandwidth_bytes_per_s'] / 1e12:.2f} TB/s, "
        title += f"matrix product {light['flops_per_s'] / 1e12:.0f} TFLOP/s"
    return title


def _decoding(axes: Axes, stages: Facts) -> None:
    decode = stages["decode"]
    axes.set_title(f"Decoding after {decode['context']:,} tokens, share of the floor (tokens/s, of the floor's)")
    labels: list[str] = []
    for role, colour in (("draft", SKY), ("target", BLUE)):
        for way in (way for way in WAYS if way in decode[role]["ways"]):
            row = decode[role]["ways"][way]
            bar = axes.barh(len(labels), row["share_of_floor"], color=colour)
            axes.bar_label(bar, [f"{row['tokens_per_s']:,.0f} of {decode[role]['floor_tokens_per_s']:,.0f}"], padding=3)
            labels.append(f"{role}, {way}")
    axes.set_yticks(range(len(labels)), labels)
    axes.set_xlim(0, 1.25)
    axes.axvline(1, color=GREY, linestyle=":", zorder=0)
    axes.invert_yaxis()


def _reading(axes: Axes, stages: Facts) -> None:
    styles = {"none": (GREY, "no states"), "last": (ORANGE, "last layer's"), "all": (BLUE, "all layers'")}
    contexts = stages["read"]["contexts"]
    for context, line in zip(contexts, ("-", "--"), strict=False):
        lengths = [row["num_tokens"] for row in context["reads"]]
        for kind, (colour, name) in styles.items():
            steps = [row["decode_steps"][kind] for row in context["reads"]]
            label = f"{name}, after {context['context']:,} tokens"
            axes.plot(lengths, steps, line, color=colour, marker="o", markersize=3, label=label)
    first = contexts[0]
    floors = [row["floor_ms"] / first["step"]["median_ms"] for row in first["reads"]]
    axes.plot([row["num_tokens"] for row in first["reads"]], floors, ":", color=BLACK, label="floor")
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.set_ylim(0)
    axes.set_title("The target reads a segment, in units of one of its decode steps")
    axes.set_xlabel("tokens of the segment")
    axes.legend()
