"""Records of a generation's kept segments as JSON, and statistics of a generation.

The JSON is the same in streams, responses and `GET .../trace`; Redis holds a shorter one.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, Self, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model

from semspec.types import Judgement, Segment, SegmentEnd, SegmentRecord, TokenLogprob, Writer

Verdict = Literal["accepted", "rewritten", "unjudged"]

VERDICTS: dict[bool | None, Verdict] = {True: "accepted", False: "rewritten", None: "unjudged"}
"""By `SegmentRecord.accepted`."""


class Body(BaseModel):
    """Base of JSON bodies. Unknown keys are rejected, so that `/openapi.json` describes every key."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


def if_any() -> Any:
    """A field that is omitted from the JSON when it is None."""
    return Field(default=None, exclude_if=lambda value: value is None)


class SegmentText(Body):
    """A segment written by one of the models."""

    text: str
    token_ids: list[int]
    num_tokens: int
    tokenizer: str
    """Fingerprint of the tokenizer the ids belong to."""
    writer: Writer
    end: SegmentEnd

    @classmethod
    def of_segment(cls, segment: Segment) -> Self:
        return cls(**_text(segment))


class RecordToken(Body):
    """A token in a trace."""

    token_id: int
    bytes: list[int]
    logprob: float
    alternatives: list["RecordToken"]

    @classmethod
    def of(cls, token: TokenLogprob) -> Self:
        alternatives = [RecordToken.of(alternative) for alternative in token.alternatives]
        return cls(
            token_id=token.token_id,
            bytes=list(token.data),
            logprob=token.logprob,
            alternatives=alternatives,
        )


_SHAPED = (
    "segment",
    "accepted",
    "judgement",
    "rejected",
    "logprobs",
    "repeats",
    "num_cached_tokens",
    "open_piece",
    "undrafted",
)
"""Fields of a record with another representation in JSON, or none; all other fields are copied unchanged."""
_PLAIN: dict[str, Any] = {
    name: (kind, ...) for name, kind in get_type_hints(SegmentRecord).items() if name not in _SHAPED
}
_Plain: Any = create_model("_Plain", __base__=SegmentText, **_PLAIN)


class SegmentTrace(_Plain):
    """A kept segment and the decisions on it: a `SegmentRecord` as JSON."""

    verdict: Verdict
    draft_probability: float | None
    target_probability: float | None
    ratio: float | None
    """Target probability divided by draft probability; null if the latter is 0 or the segment was not judged."""
    rejected: SegmentText | None
    """The drafted segment that this segment replaces."""
    logprobs: list[RecordToken] | None = if_any()
    """Present only if requested."""
    repeats: int | None = if_any()
    """Index of the segment that the rejected draft repeats, or of this one if the draft is a loop in itself: the reason
    for the rewrite."""
    undrafted: bool | None = if_any()
    """True if the target wrote it alone because of load."""
    num_cached_tokens: int | None = if_any()
    """Tokens of the context that the target had cached at its first call for this segment, if known."""

    @classmethod
    def of(cls, record: SegmentRecord) -> Self:
        """The JSON of a record."""
        judgement, logprobs = record.judgement, record.logprobs
        return cls(
            **{name: getattr(record, name) for name in _PLAIN},
            **_text(record.segment),
            verdict=verdict(record),
            draft_probability=None if judgement is None else judgement.draft_probability,
            target_probability=None if judgement is None else judgement.target_probability,
            ratio=None if judgement is None else _ratio(judgement),
            rejected=None if record.rejected is None else SegmentText.of_segment(record.rejected),
            logprobs=None if logprobs is None else list(map(RecordToken.of, logprobs)),
            repeats=record.repeats,
            undrafted=record.undrafted or None,
            num_cached_tokens=record.num_cached_tokens,
        )


_STORED = TypeAdapter(
    tuple[SegmentRecord], config=ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
)
"""Adapter of one record, in a tuple because an adapter of a dataclass takes no configuration."""


def stored(record: SegmentRecord) -> str:
    """Serialise a record for Redis: its fields that differ from the defaults, as JSON."""
    return _STORED.dump_json((record,), exclude_defaults=True).decode()


def read_stored(line: str) -> SegmentRecord:
    """Read a line of `stored`. Raises: ValueError."""
    return _STORED.validate_json(line)[0]


def verdict(record: SegmentRecord) -> Verdict:
    """Return whether the segment was accepted, rewritten or not judged."""
    return VERDICTS[record.accepted]


def _text(segment: Segment) -> dict[str, Any]:
    named = {field.name: getattr(segment, field.name) for field in fields(segment)}
    return {**named, "token_ids": list(segment.token_ids), "num_tokens": len(segment.token_ids)}


def _ratio(judgement: Judgement) -> float | None:
    ratio = (
        judgement.target_probability / judgement.draft_probability
        if judgement.draft_probability
        else math.inf
    )
    return ratio if math.isfinite(ratio) else None


@dataclass(frozen=True, slots=True)
class Step:
    """One decision on drafted tokens, like a speculation step in vLLM, where one forward pass verifies a proposal.

    Here a step is either a judged segment, with all or none of its tokens accepted; or all tokens proposed while the
    target wrote one segment (`token-level`), over any number of forward passes. The draft acceptance rate has the same
    meaning as in vLLM. The mean acceptance length counts tokens per decision: an accepted segment has no bonus token,
    and a rejected one is replaced by a whole segment of the target.
    """

    num_draft_tokens: int
    num_accepted_tokens: int


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of the records of one or more generations."""

    num_segments: int
    num_accepted: int
    num_rejected: int
    num_tokens: int
    num_target_tokens: int
    """Output tokens written by the target, without accepted proposals."""
    num_proposed_tokens: int
    """Tokens that the draft proposed to the target in token-level speculation."""
    num_accepted_tokens: int
    """Number of proposed tokens kept; their segments count as written by the target."""
    fallback: str | None
    """Why the target continued alone; None if it did not."""
    num_undrafted: int
    """Segments that the target wrote alone because of load."""
    steps: Sequence[Step]

    @property
    def acceptance_rate(self) -> float | None:
        """Share of judged segments that were accepted; None if none was judged."""
        return share(self.num_accepted, self.num_accepted + self.num_rejected)

    @property
    def target_ratio(self) -> float | None:
        """`num_target_tokens` as a share of all output tokens; None if there are none."""
        return share(self.num_target_tokens, self.num_tokens)


def statistics(records: Iterable[SegmentRecord]) -> Statistics:
    """The statistics used by responses, metrics, spans and benchmarks."""
    records = list(records)
    by_target = sum(
        len(record.segment.token_ids)
        for record in records
        if record.segment.writer is Writer.TARGET
    )
    num_accepted_tokens = sum(record.num_accepted_tokens for record in records)
    return Statistics(
        num_segments=len(records),
        num_accepted=sum(record.accepted is True for record in records),
        num_rejected=sum(record.accepted is False for record in records),
        num_tokens=sum(len(record.segment.token_ids) for record in records),
        num_target_tokens=by_target - num_accepted_tokens,
        num_proposed_tokens=sum(record.num_proposed_tokens for record in records),
        num_accepted_tokens=num_accepted_tokens,
        fallback=next((record.fallback for record in records if record.fallback), None),
        num_undrafted=sum(record.undrafted for record in records),
        steps=[step for record in records for step in _steps(record)],
    )


def speculative_decoding(steps: Sequence[Step]) -> dict[str, Any] | None:
    """The metrics that `vllm serve --per-request-spec-decode-metrics summary` returns for a request.

    None when there were no decisions on drafts. `num_spec_tokens` is None: a drafted segment has no such limit.
    """
    num_draft = sum(step.num_draft_tokens for step in steps)
    if not num_draft:
        return None
    num_accepted = sum(step.num_accepted_tokens for step in steps)
    histogram = [0] * (1 + max(step.num_accepted_tokens for step in steps))
    for step in steps:
        histogram[step.num_accepted_tokens] += 1
    return {
        "mean_acceptance_length": 1 + num_accepted / len(steps),
        "draft_acceptance_rate": num_accepted / num_draft,
        "acceptance_histogram": histogram,
        "num_accepted_draft_tokens": num_accepted,
        "num_draft_tokens": num_draft,
        "num_spec_steps": len(steps),
        "num_spec_tokens": None,
    }


def share(part: float, whole: float) -> float | None:
    """Return `part / whole`; None if `whole` is 0."""
    return part / whole if whole else None


def _steps(record: SegmentRecord) -> Iterable[Step]:
    """Yield the decisions that led to a kept segment; none if nothing was drafted, or the draft was not judged."""
    if record.accepted:
        yield Step(len(record.segment.token_ids), len(record.segment.token_ids))
    if record.rejected is not None:
        yield Step(len(record.rejected.token_ids), 0)
    if record.num_proposed_tokens:
        yield Step(record.num_proposed_tokens, record.num_accepted_tokens)
