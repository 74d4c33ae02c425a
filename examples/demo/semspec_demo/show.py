"""The demo's output: a generation segment by segment, and the table of results."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import sqrt

from rich.table import Table
from rich.text import Text

from semspec_demo.client import Answer, Json, Strategy

STYLES = {"accepted": ("✓", "green"), "rewritten": ("✎", "yellow"), "unjudged": ("·", "white")}
LEGEND = """\
✓ drafted, accepted   ✗ drafted, refused   ✎ rewritten by the target
p, q: semantic probability under target and draft"""


@dataclass(frozen=True, slots=True)
class Row:
    """Results of one strategy over all problems; the fields are keys of the demo's JSON."""

    pass_at_1: float
    latency_s: float
    """Mean seconds per problem."""
    speedup: float
    """The target's latency divided by this one's."""
    tokens_per_s: float
    target_ratio: float
    """Share of the tokens that the target wrote."""
    acceptance_rate: float | None
    """Accepted share of the judged segments; None if there are none."""


def summarise(answers: Mapping[Strategy, Sequence[Answer]]) -> dict[Strategy, Row]:
    """A row for each strategy."""
    target_latency_s = _latency_s(answers["target"])
    return {
        strategy: _row(strategy, graded, target_latency_s) for strategy, graded in answers.items()
    }


def _row(strategy: Strategy, answers: Sequence[Answer], target_latency_s: float) -> Row:
    num_tokens = sum(answer.num_tokens for answer in answers)
    num_accepted = sum(answer.num_accepted for answer in answers)
    num_judged = num_accepted + sum(answer.num_rejected for answer in answers)
    latency_s = _latency_s(answers)
    return Row(
        pass_at_1=sum(answer.is_right for answer in answers) / len(answers),
        latency_s=latency_s,
        speedup=target_latency_s / latency_s,
        tokens_per_s=num_tokens / (latency_s * len(answers)),
        target_ratio=sum(answer.num_target_tokens for answer in answers) / max(num_tokens, 1),
        acceptance_rate=num_accepted / num_judged
        if strategy not in ("target", "draft") and num_judged
        else None,
    )


def _latency_s(answers: Sequence[Answer]) -> float:
    return sum(answer.latency_s for answer in answers) / len(answers)


def as_json(rows: Mapping[Strategy, Row], temperature: float, num_problems: int) -> Json:
    """The results as JSON."""
    strategies = {strategy: asdict(row) for strategy, row in rows.items()}
    return {"temperature": temperature, "num_problems": num_problems, "strategies": strategies}


def table(rows: Mapping[Strategy, Row], temperature: float, num_problems: int) -> Table:
    """The results as a table."""
    results = Table(title=f"{num_problems} problems, temperature {temperature:g}")
    results.add_column("strategy")
    for name in ("pass@1", "latency\ns", "speed-up", "tokens/s", "target\nratio", "accept-\nance"):
        results.add_column(name, justify="right", no_wrap=True)
    for strategy, row in rows.items():
        error = sqrt(row.pass_at_1 * (1 - row.pass_at_1) / num_problems)
        results.add_row(
            strategy,
            f"{row.pass_at_1:.3f} ± {error:.3f}",
            f"{row.latency_s:.3f}",
            f"{row.speedup:.2f}x",
            f"{row.tokens_per_s:.1f}",
            f"{row.target_ratio:.2f}",
            "-" if row.acceptance_rate is None else f"{row.acceptance_rate:.2f}",
        )
    return results


def segment(record: Json) -> Text:
    """One kept segment: its text, the refused draft struck through underneath, the judgement and the times."""
    mark, colour = STYLES[record["verdict"]]
    text = Text(f"{mark} {_one_line(record)}", colour)
    if record["rejected"]:
        text.append("\n  ✗ ", "red").append(_one_line(record["rejected"]), "red strike")
    return text.append(f"\n  {_judgement(record)}{_times(record)}", "bright_black")


def _one_line(piece: Json) -> str:
    return " ⏎ ".join(line for line in piece["text"].split("\n") if line)


def _judgement(record: Json) -> str:
    if record["target_probability"] is None:
        return f"{record['fallback']}   " if record["fallback"] else ""
    ratio = "∞" if record["ratio"] is None else f"{record['ratio']:.2f}"
    return (
        f"p {record['target_probability']:.2f}  q {record['draft_probability']:.2f}  p/q {ratio}   "
    )


def _times(record: Json) -> str:
    stages = (
        (name.removesuffix("_ms"), duration_ms) for name, duration_ms in record["times"].items()
    )
    return "  ".join(f"{name} {duration_ms:.0f} ms" for name, duration_ms in stages if duration_ms)
