"""Rewrites of rejected segments in a run: tokens a round, time a token, and the share of segments kept with several
alternatives, each predicted in closed form and obtained.

python -m studies.simulate.rewrites RUN [--pace NAME] [--call-ms MS]
"""

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semspec.bench.configuration import Configuration, parse_recorded
from semspec.bench.pace.table import Pace, load_pace
from semspec.bench.record import RECORDS, Record, read_records
from semspec.decoding.token_level import NUM_TOKENS
from semspec.errors import InvalidRequest, SemspecError
from semspec.training.report.document import Table
from studies.simulate.engines import Host

HEADER = (
    "configuration", "rewrites", "tokens a rewrite", "accepted share", "tokens a round", "by Leviathan's formula",
    "predicted ms a token", "ms a token in the run",
)  # fmt: skip


def tokens_a_round(acceptance: float, num_proposed: int) -> float:
    """Expected tokens of a round that proposes `num_proposed` (Leviathan et al. 2023, equation 1).

    `acceptance`: probability that the target accepts a token, given that it accepted those before it.
    """
    if acceptance >= 1:
        return num_proposed + 1.0
    return (1 - acceptance ** (num_proposed + 1)) / (1 - acceptance)


def acceptance_of(share: float, num_proposed: int) -> float:
    """The acceptance of a token at which `share` of all proposed tokens is accepted."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        is_below = tokens_a_round(middle, num_proposed) - 1 < share * num_proposed
        low, high = (middle, high) if is_below else (low, middle)
    return low


def kept_share(acceptance: float, num_candidates: int) -> float:
    """Probability that one of `num_candidates` independent alternatives of a segment is accepted."""
    return 1 - (1 - acceptance) ** num_candidates


@dataclass(frozen=True, slots=True)
class Times:
    """Times in ms of what a round consists of, of one sequence."""

    draft_step_ms: float
    target_step_ms: float
    call_ms: float
    """Of the host, for each call of an engine."""

    def round_ms(self, num_proposed: int) -> float:
        """Time of a round of the draft's proposals; 0 proposed by the draft: proposals that cost nothing."""
        propose_ms = num_proposed * self.draft_step_ms + self.call_ms if num_proposed else 0.0
        return propose_ms + self.target_step_ms + self.call_ms


@dataclass(frozen=True, slots=True)
class Rewrites:
    """All rewrites of a configuration."""

    configuration: Configuration
    num_rewrites: int
    num_tokens: int
    num_proposed: int
    num_accepted: int
    write_ms: float

    @property
    def num_rounds(self) -> int:
        """Each round adds one token of the target's own, but the last of a rewrite if its end was proposed."""
        return self.num_tokens - self.num_accepted

    @property
    def share(self) -> float:
        """Accepted share of the proposed tokens."""
        return self.num_accepted / self.num_proposed if self.num_proposed else 0.0

    @property
    def has_draft(self) -> bool:
        """Whether the draft proposes."""
        return self.configuration.variant == "semantic+token-level"

    @property
    def num_proposed_a_round(self) -> int:
        return int(self.configuration.knobs.get("num_speculative_tokens", NUM_TOKENS.default))

    def predicted_tokens(self) -> float | None:
        """By Leviathan's formula at the measured acceptance; None where the acceptance is not that of a draft."""
        if not self.has_draft:
            return None
        return tokens_a_round(acceptance_of(self.share, self.num_proposed_a_round), self.num_proposed_a_round)

    def predicted_ms(self, times: Times) -> float:
        """Time of a token."""
        if not self.num_proposed:
            return times.target_step_ms
        if not self.has_draft:
            return times.round_ms(0) * self.num_rounds / self.num_tokens
        num_proposed, acceptance = self.num_proposed_a_round, acceptance_of(self.share, self.num_proposed_a_round)
        return times.round_ms(num_proposed) / tokens_a_round(acceptance, num_proposed)

    def row(self, times: Times) -> tuple[str, ...]:
        predicted = self.predicted_tokens()
        return (
            self.configuration.label,
            str(self.num_rewrites),
            f"{self.num_tokens / self.num_rewrites:.1f}",
            f"{self.share:.2f}" if self.num_proposed else "-",
            f"{self.num_tokens / self.num_rounds:.2f}",
            "-" if predicted is None else f"{predicted:.2f}",
            f"{self.predicted_ms(times):.1f}",
            f"{self.write_ms / self.num_tokens:.1f}",
        )


def rewrites(records: Sequence[Record]) -> list[Rewrites]:
    """The rewrites of each configuration that has any, in the order of `records`."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        rows.setdefault(record.label, []).extend(row for row in record.trace if row["rejected"])
    return [
        Rewrites(
            parse_recorded(label),
            len(own),
            sum(row["num_tokens"] for row in own),
            sum(row["num_proposed_tokens"] for row in own),
            sum(row["num_accepted_tokens"] for row in own),
            sum(row["times"]["write_ms"] for row in own),
        )
        for label, own in rows.items()
        if own
    ]


def times_of(pace: Pace, call_ms: float) -> Times:
    """The times of a step of one sequence and one token; reading a few more costs the same."""
    return Times(pace.draft.step_ms(1, 1), pace.target.step_ms(1, 1), call_ms)


def kept_table(records: Sequence[Record]) -> Table:
    """The accepted share of segments by configuration with alternatives, and what one draft's share predicts."""
    shares: dict[str, float] = {}
    for label in dict.fromkeys(record.label for record in records):
        own = [record for record in records if record.label == label]
        accepted, rejected = (sum(getattr(one, name) for one in own) for name in ("num_accepted", "num_rejected"))
        if accepted + rejected:
            shares[label] = accepted / (accepted + rejected)
    rows = []
    for label, share in shares.items():
        num = parse_recorded(label).knobs.get("num_candidates", 1)
        one_draft = shares.get(re.sub(r":num_(drafts|candidates)=\d+", "", label))
        if num > 1 and one_draft is not None:
            rows.append((label, f"{one_draft:.3f}", f"{kept_share(one_draft, num):.3f}", f"{share:.3f}"))
    return Table(("configuration", "kept of one draft", "predicted", "kept in the run"), tuple(rows))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables of a run. Exits 2 on bad input."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder of `semspec bench run`")
    parser.add_argument("--pace", default="h200-1.5b-32b", help="tables of step times for the prediction")
    parser.add_argument("--call-ms", type=float, default=Host().call_ms, help="host time of a call")
    chosen = parser.parse_args(arguments)
    try:
        records = read_records(chosen.run / RECORDS)
        if not (found := rewrites(records)):
            raise InvalidRequest(f"{chosen.run} has no rewritten segments; name the folder of a run", "run")
        times = times_of(load_pace(chosen.pace), chosen.call_ms)
    except SemspecError as error:
        print(f"rewrites: {error.message}", file=sys.stderr)
        sys.exit(2)
    print(Table(HEADER, tuple(one.row(times) for one in found)).as_markdown())
    print(kept_table(records).as_markdown(), end="")


if __name__ == "__main__":
    main()
