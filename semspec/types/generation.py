"""What a request may choose, and the events a generation becomes."""

from dataclasses import dataclass
from typing import Literal

from semspec.types.engine import Judgement, TokenLogprob
from semspec.types.text import FinishReason, Segment

AcceptanceRule = Literal["sample", "threshold"]


ScoreMethod = Literal["greedy", "average"]


@dataclass(frozen=True, slots=True)
class Acceptance:
    """When a drafted segment is kept, given `ratio` = target_probability / draft_probability.

    `sample` accepts with probability min(1, ratio) (SemanticSpec, Algorithm 1), `threshold` iff ratio >= threshold.
    """

    rule: AcceptanceRule = "sample"
    threshold: float = 0.5


MAX_SCORE = 9
"""The best score of a step."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """When `spec-reason` keeps a step: iff the target's score of it, 0 to 9, reaches `threshold` (SpecReason).

    `greedy` takes the likeliest digit, 0 if something else is likelier; `average` the expectation over the digits.
    """

    method: ScoreMethod = "greedy"
    threshold: float = 7.0


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Wall time the loop waited for each stage of one segment, in milliseconds."""

    draft_ms: float = 0.0
    read_ms: float = 0.0
    judge_ms: float = 0.0
    write_ms: float = 0.0
    wire_ms: float = 0.0
    """The part of the other four that no engine spent: transport and queueing, the verifier's own work included."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the strategy `auto` expected of the ways to go on when it chose one."""

    gamma: int
    """Segments to draft at a time; 0: the target alone."""
    draft_ms_per_token: float | None
    """Expected time of an output token, drafting `gamma` segments (the best gamma, if the target goes alone); None
    before anything was measured."""
    target_ms_per_token: float | None
    """The same of the target alone."""


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """One line of a generation's trace: a kept segment and how it came to be."""

    index: int
    segment: Segment
    accepted: bool | None
    """True: drafted and accepted. False: the target rewrote it. None: it was never judged."""
    judgement: Judgement | None = None
    draw: float | None = None
    """The uniform number the acceptance rule `sample` compared with the ratio."""
    rejected: Segment | None = None
    """The drafted segment this one replaces."""
    num_proposed_tokens: int = 0
    """Tokens proposed to the target in token-level speculation while it wrote this segment."""
    num_accepted_tokens: int = 0
    """How many of them it kept."""
    score: float | None = None
    """The target's score of the drafted step, 0 to 9, under `spec-reason`."""
    times: StageTimes = StageTimes()
    fallback: str | None = None
    """Why the target wrote alone here although the strategy would have drafted."""
    forecast: Forecast | None = None
    """Why `auto` drafted here, or did not."""
    logprobs: tuple[TokenLogprob, ...] | None = None
    """Its writer's, one a token, if asked for."""


@dataclass(frozen=True, slots=True)
class Drafted:
    """Segments the draft has written and the target is about to read; nothing is decided."""

    index: int
    """Of the first one."""
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a generation."""

    reason: FinishReason


Event = SegmentRecord | Drafted | Finished
