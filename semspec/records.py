"""What a generation leaves behind: a record of each kept segment, as JSON and back, and the statistics of them all.

The JSON is the same in a stream, a response, Redis and `GET .../trace`.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, Self, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, JsonValue, create_model

from semspec.types import Judgement, Segment, SegmentEnd, SegmentRecord, TokenLogprob, Writer

Json = dict[str, JsonValue]
Verdict = Literal["accepted", "rewritten", "unjudged"]

_VERDICTS: dict[bool | None, Verdict] = {True: "accepted", False: "rewritten", None: "unjudged"}


class Body(BaseModel):
    """Complete: a key that is not a field is refused, and would be a fault of the description in `/openapi.json`."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


def if_any() -> Any:
    """A field that is left out of the JSON where it is None."""
    return Field(default=None, exclude_if=lambda value: value is None)


class SegmentText(Body):
    """A segment as one of the models wrote it."""

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

    def segment(self) -> Segment:
        return Segment(self.text, tuple(self.token_ids), self.tokenizer, self.writer, self.end)


class RecordToken(Body):
    """A token in a trace."""

    token_id: int
    bytes: list[int]
    logprob: float
    alternatives: list["RecordToken"]

    @classmethod
    def of(cls, token: TokenLogprob) -> Self:
        alternatives = [RecordToken.of(other) for other in token.alternatives]
        return cls(token_id=token.token_id, bytes=list(token.data), logprob=token.logprob, alternatives=alternatives)

    def token(self) -> TokenLogprob:
        alternatives = tuple(other.token() for other in self.alternatives)
        return TokenLogprob(self.token_id, bytes(self.bytes), self.logprob, alternatives)


_SHAPED = ("segment", "accepted", "judgement", "rejected", "logprobs")
"""Fields of a record that its JSON tells in other words; all others are there as they are."""
_PLAIN: dict[str, Any] = {
    name: (kind, ...) for name, kind in get_type_hints(SegmentRecord).items() if name not in _SHAPED
}
_Plain: Any = create_model("_Plain", __base__=SegmentText, **_PLAIN)


class SegmentTrace(_Plain):
    """A kept segment and how it came to be: a `SegmentRecord` as JSON."""

    verdict: Verdict
    draft_probability: float | None
    target_probability: float | None
    ratio: float | None
    """Target's over draft's probability; null where the draft's is 0 or nothing was judged."""
    rejected: SegmentText | None
    """The drafted segment that this one replaces."""
    logprobs: list[RecordToken] | None = if_any()
    """Only if asked for."""

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
        )

    def record(self) -> SegmentRecord:
        """The record that `of` was given."""
        judgement = None
        if self.draft_probability is not None and self.target_probability is not None:
            judgement = Judgement(self.draft_probability, self.target_probability)
        return SegmentRecord(
            **{name: getattr(self, name) for name in _PLAIN},
            segment=self.segment(),
            accepted=next(accepted for accepted, verdict in _VERDICTS.items() if verdict == self.verdict),
            judgement=judgement,
            rejected=None if self.rejected is None else self.rejected.segment(),
            logprobs=None if self.logprobs is None else tuple(token.token() for token in self.logprobs),
        )


def verdict(record: SegmentRecord) -> Verdict:
    """How the segment came to be kept."""
    return _VERDICTS[record.accepted]


def record_json(record: SegmentRecord) -> Json:
    """All that is known of a kept segment."""
    body: Json = SegmentTrace.of(record).model_dump(mode="json")
    return body


def _text(segment: Segment) -> dict[str, Any]:
    named = {field.name: getattr(segment, field.name) for field in fields(segment)}
    return {**named, "token_ids": list(segment.token_ids), "num_tokens": len(segment.token_ids)}


def _ratio(judgement: Judgement) -> float | None:
    ratio = judgement.target_probability / judgement.draft_probability if judgement.draft_probability else math.inf
    return ratio if math.isfinite(ratio) else None


@dataclass(frozen=True, slots=True)
class Step:
    """One decision on drafted tokens, in the sense of vLLM, where one forward of the target decides on a proposal.

    Here it is what was decided at once, as far as the records tell: a drafted segment that was judged, all of whose
    tokens were accepted or none; or the tokens proposed while the target wrote a segment (`token-level`), however many
    forwards that took. The share of accepted tokens means the same as there. The mean acceptance length counts tokens
    a decision: a kept segment has no bonus token, and a refused one costs a segment of the target's own.
    """

    num_draft_tokens: int
    num_accepted_tokens: int


@dataclass(frozen=True, slots=True)
class Statistics:
    """What the records of a generation, or of several, come to."""

    num_segments: int
    num_accepted: int
    num_rejected: int
    num_tokens: int
    num_target_tokens: int
    """Of the output, those that the target came up with."""
    num_proposed_tokens: int
    """Of the draft, for the target to verify one by one."""
    num_accepted_tokens: int
    """How many of these the target kept, in segments that count as written by it."""
    fallback: str | None
    """Why the target went on alone, if it did."""
    steps: Sequence[Step]

    @property
    def acceptance_rate(self) -> float | None:
        """Of judged segments; None if none was."""
        return share(self.num_accepted, self.num_accepted + self.num_rejected)

    @property
    def target_ratio(self) -> float | None:
        """Share of the output's tokens that the target came up with."""
        return share(self.num_target_tokens, self.num_tokens)


def statistics(records: Iterable[SegmentRecord]) -> Statistics:
    """The numbers that responses, metrics, spans and benches tell."""
    records = list(records)
    by_target = sum(len(record.segment.token_ids) for record in records if record.segment.writer is Writer.TARGET)
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
        steps=[step for record in records for step in _steps(record)],
    )


def speculative_decoding(steps: Sequence[Step]) -> dict[str, Any] | None:
    """What `vllm serve --per-request-spec-decode-metrics summary` tells of a request; None where nothing drafted was
    decided on. `num_spec_tokens`, the most tokens a draft may have, is None: a segment has no such bound."""
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
    """None of nothing."""
    return part / whole if whole else None


def _steps(record: SegmentRecord) -> Iterable[Step]:
    """The decisions that led to a kept segment; none where nothing was drafted, or what was drafted was not judged."""
    if record.accepted:
        yield Step(len(record.segment.token_ids), len(record.segment.token_ids))
    if record.rejected is not None:
        yield Step(len(record.rejected.token_ids), 0)
    if record.num_proposed_tokens:
        yield Step(record.num_proposed_tokens, record.num_accepted_tokens)
