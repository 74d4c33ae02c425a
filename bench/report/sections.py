"""The sections of the report."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from semspec.bench.report import ablations, figures, paced, paper, rounds, tables
from semspec.bench.report.probes import ProbesReport, offline
from semspec.bench.report.tables import lost, main_row, pair_name, run_command, sample_size, setting
from semspec.bench.summary import Row, Run
from semspec.training.files import flat
from semspec.training.report.document import Block, Code, Section, Table, Text
from semspec.training.report.drawing import Picture
from semspec.training.report.numbers import NONE, decimal, measured_decimal, share

LOSSY = (
    "Not lossless. Semantic acceptance keeps what means the same as far as a probe can tell; a wrong step that looks "
    "right to the target is kept, and the answer may differ from the target's. That is so by construction: read pass@1 "
    "and speed together, always. Of our strategies only `target`, `token-level` and `retrieval` keep the "
    "target's distribution."
)


def headline(runs: Sequence[Run]) -> Section:
    return Section("In short", tuple(Text(sentence) for run in runs for sentence in _in_short(run)))


def _in_short(run: Run) -> Iterator[str]:
    row, base = main_row(run), run.rows[0]
    name = f"{pair_name(run)} on {setting(run)} ({sample_size(run)})"
    if row is None or row is base:
        yield f"{name}: no semantic strategy was run."
        return
    if not run.is_timed:
        loss = f"{100 * -row.difference_95.low:.1f} points (95%)"
        yield (
            f"{name}: `{row.label}` has pass@1 {measured_decimal(row.pass_at_1)} against "
            f"{measured_decimal(base.pass_at_1)} of `{base.label}`: a difference of {lost(row)}, "
            f"a loss of at most {loss}."
        )
        return
    yield (
        f"{name}: `{row.label}` answers {measured_decimal(row.speedup, 2)} times as fast as `{base.label}`, with "
        f"pass@1 {measured_decimal(row.pass_at_1)} against {measured_decimal(base.pass_at_1)}: "
        f"a difference of {lost(row)}."
    )
    if rival := _fastest_rival(run):
        yield (
            f"The fastest other method whose pass@1 is not lower by two standard errors is `{rival.label}`: "
            f"{measured_decimal(rival.speedup, 2)} times as fast, pass@1 {decimal(rival.pass_at_1.value)}."
        )


def _fastest_rival(run: Run) -> Row | None:
    others = [row for row in run.rows[1:] if row.configuration.method not in ("semantic", "target")]
    near = [row for row in others if row.difference.value >= -2 * row.difference.error]
    return max(near, key=lambda row: row.speedup.value, default=None)


def measured(run: Run) -> Section:
    """One run: its tables and pictures."""
    title = f"{run.name}: {setting(run)}, {sample_size(run)}"
    blocks: list[Block] = [
        tables.main_table(run),
        Text(_COLUMNS if run.is_timed else _UNTIMED),
        *paced.blocks(run),
    ]
    blocks += [tables.quality_table(run), Text(_QUALITY), *_run_pictures(run)]
    if run.is_timed:
        blocks += [
            Text("Where a mean answer's time goes, in milliseconds, and how answers end:"),
            tables.details_table(run),
        ]
    return Section(title, tuple(blocks))


_COLUMNS = (
    "± is one standard error, by resampling questions; differences are paired by question, p is McNemar's exact test. "
    "Latency is at the client, over the whole answer; speed-up is the ratio of mean latencies. Target ratio: share of "
    "the tokens that the target wrote or drew."
)


_UNTIMED = (
    "± is one standard error, by resampling questions; differences are paired by question, p is McNemar's exact test. "
    "Several questions of all configurations were under way at once: quality is measured, times are not. "
    "Target ratio: share of the tokens that the target wrote or drew."
)
_QUALITY = (
    "Intervals of 95%: Wilson's for a share, Newcombe's (method 10) for a paired difference; several answers to a "
    "question count as the independent answers whose mean would vary as much. The last columns are about the lower end."
)


def _run_pictures(run: Run) -> Iterator[Picture]:
    asked = f"{setting(run)}, {sample_size(run)}"
    if len(run.rows) > 1:
        yield Picture.drawn(
            f"{run.name}-quality", "Loss of quality",
            f"{asked}. Bars: 95% intervals. Left of the red line is a loss of {100 * tables.MARGIN:g} points or more.",
            f"pass@1 minus the target's, {len(run.rows) - 1} configurations; the table has the numbers.",
            figures.quality, run.rows[1:],
        )  # fmt: skip
    if not run.is_timed:
        return
    yield Picture.drawn(
        f"{run.name}-pareto", "Quality against speed",
        f"{asked}. Bars: one standard error. A line joins one strategy's thresholds. Further up and right is better.",
        f"pass@1 against speed-up, {len(run.rows)} configurations; the table has the numbers.", figures.pareto, run,
    )  # fmt: skip
    yield Picture.drawn(
        f"{run.name}-speedup", "Speed-up",
        f"{asked}. Orange: pass@1 is lower than the target's by more than two standard errors. Green: other engines.",
        f"Bars: speed-up, {len(run.rows)} configurations; the table has the numbers.", figures.speedups, run,
    )  # fmt: skip
    row = main_row(run)
    if row is not None:
        yield from _round_pictures(run, row)


def _round_pictures(run: Run, row: Row) -> Iterator[Picture]:
    if round_ := rounds.mean_round(run, row):
        spent = ", ".join(
            f"{title} {round_.stages_ms[name]:.2f} ms" for name, title in rounds.STAGE_NAMES.items()
        )
        yield Picture.drawn(
            f"{run.name}-round", "One round",
            f"`{row.label}`, {setting(run)}. The stages follow one another; drafting that hides behind reading is not "
            "in them. A segment is rewritten in some rounds only: the mean is over all. "
            "Other: of the answer's latency, what no stage accounts for. Below: the target alone, for as many tokens.",
            f"Waterfall of a mean round: {spent}.", rounds.waterfall, round_,
        )  # fmt: skip
    if len(depths := rounds.by_depth(run, row)) > 1:
        yield Picture.drawn(
            f"{run.name}-depth", "Acceptance along the answer",
            f"`{row.label}`, {setting(run)}: positions with at least {rounds.LEAST_SEGMENTS} judged segments. "
            "Bars: one binomial standard error.",
            f"Share accepted from {share(depths[0].acceptance.value)} of the first to "
            f"{share(depths[-1].acceptance.value)} of the last.",
            rounds.acceptance_by_depth, depths,
        )  # fmt: skip


def paper_layout(runs: Sequence[Run]) -> Iterator[Section]:
    """Tables with a row per method and a column per task, as in the paper's main comparison."""
    yield Section("In the paper's layout", (Text(_LAYOUT),))
    for pair in dict.fromkeys(map(pair_name, runs)):
        own = [run for run in runs if pair_name(run) == pair]
        short = paper.paper_pair(own[0])
        published = [row for row in paper.RESULTS if short and row.pair.startswith(short)]
        yield Section(f"Pair {pair}", (tables.by_task(own, published),), level=3)
    yield Section(
        "The paper's own values, for orientation", (Text(_PAPER), tables.published_table()), level=3
    )
    claims = Text(
        "Speed-ups that other papers claim for their methods, on models and machines of their own:"
    )
    yield Section(
        "Other methods' claims, for orientation", (claims, tables.claims_table()), level=3
    )


_LAYOUT = (
    f"Methods down, tasks across, as SemanticSpec ({paper.SOURCE}) compares. Each cell: {tables.CELL}. "
    "Rows marked `published` are the paper's, on its hardware (table 3: with Hugging Face, not SGLang); they stand "
    "only where our pair is one of its two. A dash: not measured."
)
_PAPER = (
    f"From {paper.SOURCE}: draft DeepSeek-R1-Distill-Qwen-1.5B, targets DeepSeek-R1-Distill-Qwen-32B (R1-32B) and "
    f"QwQ-32B, 2 GPUs of 80 GB, SGLang. Each cell: {tables.CELL}; in brackets the target's latency over the row's, "
    "computed here. The abstract speaks of up to 2.7 and 2.1 times. The token-level row loses pass@1, though that "
    "method keeps the target's distribution. Other models, engines and machines: not to be compared number by number."
)


def parts(runs: Sequence[Run], probes: ProbesReport | None) -> Iterator[Section]:
    """Ablations, as in the paper."""
    yield Section("What each part is worth", (Text(_ABLATIONS),))
    features = list(map(ablations.features, runs))
    yield Section("What the probes see", (*_compared(features), *_variants(probes)), level=3)
    gammas = list(map(ablations.gammas, runs))
    yield Section("Gamma", (*_compared(gammas), *_gamma_pictures(gammas)), level=3)
    yield Section("Segmentation", _compared(list(map(ablations.segmentations, runs))), level=3)
    yield Section("Learning curve and domains", tuple(offline(probes)), level=3)


_ABLATIONS = (
    "Rows of one run that differ in one thing only, "
    "and what the probes' own report says of held-out questions."
)


def _variants(probes: ProbesReport | None) -> Iterator[Block]:
    if probes:
        yield Text(f"Offline, on held-out questions, probes for {probes.name}:")
        yield probes.variants_table()


def _compared(found: Sequence[ablations.Ablation]) -> tuple[Block, ...]:
    """A table for each run with a comparison, or the command that measures one if no run has it."""
    blocks: list[Block] = []
    for one in found:
        if one.is_comparison:
            blocks += [Text(f"`{one.run.name}`, {setting(one.run)}:"), one.table()]
    incomplete = [one for one in found if one.missing]
    if len(incomplete) == len(found):
        first = incomplete[0]
        blocks += [
            Text(f"Not measured: {', '.join(f'`{label}`' for label in first.missing)}."),
            Code((first.command,)),
        ]
    return tuple(blocks)


def _gamma_pictures(found: Sequence[ablations.Ablation]) -> Iterator[Picture]:
    if several := [one for one in found if one.is_comparison]:
        caption = "`semantic`, bars: one standard error."
        alt = "Speed-up and pass@1 by gamma; the numbers are in the tables."
        yield Picture.drawn(
            "gamma", "Segments drafted a round", caption, alt, figures.gammas, several
        )


def caveats(runs: Sequence[Run], probes: Path | None) -> Iterator[Section]:
    """Caveats, environment, and commands to reproduce the numbers."""
    yield Section("What it is not", (Text(LOSSY), *(Text(text) for text in _warnings(runs))))
    facts = [flat(run.settings, " ") | flat(run.environment, " ") for run in runs]
    names = dict.fromkeys(name for one in facts for name in one)
    rows = [(name, *(_fact(one.get(name)) for one in facts)) for name in names]
    yield Section("Environment", (Table(("", *(run.name for run in runs)), rows),))
    commands = [run_command(run, [row.label for row in run.rows]) for run in runs]
    options = [f"--probes {_shown(probes)}"] if probes else []
    report = " ".join(["semspec bench report", *(_shown(run.folder) for run in runs), *options])
    yield Section("Commands", (Code((*commands, report)),))


def _warnings(runs: Sequence[Run]) -> Iterator[str]:
    for run in runs:
        worst = max(run.rows, key=lambda row: row.share_cut)
        if worst.share_cut > 0.01:
            yield (
                f"In `{run.name}` up to {worst.share_cut:.0%} of the answers (`{worst.label}`) ran into the token "
                "budget; they are graded as they stand."
            )
        if run.rows[0].num_questions < 100:
            yield f"`{run.name}` has {sample_size(run)}: differences of a few points are noise."


def _fact(value: Any) -> str:
    return NONE if value in (None, [], "") else str(value)


def _shown(path: Path) -> str:
    """The path relative to the working directory; only the name of a path outside it."""
    path = path.resolve()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else path.name
