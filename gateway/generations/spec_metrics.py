"""Acceptance in the words and the shape of vLLM, so that tools made for it (NVIDIA AIPerf) measure this server too.

vLLM counts verification steps: a draft proposes tokens, one forward of the target decides on them. Here a step is what
was decided at once, as far as a trace tells:

- a drafted segment that was judged: all its tokens were proposed, and all of them or none accepted;
- the tokens proposed one by one while the target wrote a segment (`token-level`), however many forwards that took.

The share of accepted tokens means the same as there. The mean acceptance length, 1 + accepted tokens a step, counts
tokens a decision: a kept segment has no bonus token, and a refused one costs a segment of the target's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pydantic import JsonValue

from semspec.records import Json
from semspec.types import SegmentRecord


class Recorded(Protocol):
    """A generation with its trace, such as a `Summary`."""

    @property
    def records(self) -> Sequence[SegmentRecord]: ...


@dataclass(frozen=True, slots=True)
class Step:
    """One decision on drafted tokens."""

    num_draft_tokens: int
    num_accepted_tokens: int


def steps(record: SegmentRecord) -> list[Step]:
    """The decisions that led to a kept segment; none where nothing was drafted, or what was drafted was not judged."""
    decided: list[Step] = []
    if record.accepted:
        num_tokens = len(record.segment.token_ids)
        decided.append(Step(num_tokens, num_tokens))
    if record.rejected is not None:
        decided.append(Step(len(record.rejected.token_ids), 0))
    if record.num_proposed_tokens:
        decided.append(Step(record.num_proposed_tokens, record.num_accepted_tokens))
    return decided


def speculative_decoding(generations: Sequence[Recorded]) -> Json | None:
    """`metrics.speculative_decoding` of a response, as `vllm serve --per-request-spec-decode-metrics summary` has it.

    None for several choices, as there, and where nothing drafted was decided on. `num_spec_tokens`, the most tokens a
    draft may have, is null: a segment has no such bound.
    """
    if len(generations) != 1:
        return None
    decided = [step for record in generations[0].records for step in steps(record)]
    num_draft = sum(step.num_draft_tokens for step in decided)
    num_accepted = sum(step.num_accepted_tokens for step in decided)
    if not num_draft:
        return None
    return {
        "mean_acceptance_length": 1 + num_accepted / len(decided),
        "draft_acceptance_rate": num_accepted / num_draft,
        "acceptance_histogram": _histogram(decided),
        "num_accepted_draft_tokens": num_accepted,
        "num_draft_tokens": num_draft,
        "num_spec_steps": len(decided),
        "num_spec_tokens": None,
    }


def _histogram(decided: Sequence[Step]) -> list[JsonValue]:
    """How many steps accepted just 0, 1, 2, ... tokens, up to the most that any did."""
    counts = [0] * (1 + max(step.num_accepted_tokens for step in decided))
    for step in decided:
        counts[step.num_accepted_tokens] += 1
    return list(counts)
