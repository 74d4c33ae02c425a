"""Records of a trace: one of each way to decide on drafted tokens, and what the gateway sends of one."""

from typing import Any

from semspec.records import SegmentTrace
from semspec.types import Judgement, Segment, SegmentEnd, SegmentRecord, StageTimes, Writer


def segment(writer: Writer, num_tokens: int, text: str = "some text") -> Segment:
    return Segment(text, tuple(range(num_tokens)), "tokens-1", writer, SegmentEnd.BOUNDARY)


TIMES = StageTimes(1.0, 2.0, 3.0, 4.0, 5.0)
ACCEPTED = SegmentRecord(0, segment(Writer.DRAFT, 7), accepted=True, times=TIMES)
REWRITTEN = SegmentRecord(
    1, segment(Writer.TARGET, 5), accepted=False, rejected=segment(Writer.DRAFT, 4), times=TIMES
)
PROPOSED = SegmentRecord(
    2,
    segment(Writer.TARGET, 9),
    accepted=None,
    num_proposed_tokens=12,
    num_accepted_tokens=6,
    times=TIMES,
)
HYBRID = SegmentRecord(
    3,
    segment(Writer.TARGET, 6),
    accepted=False,
    rejected=segment(Writer.DRAFT, 3),
    num_proposed_tokens=8,
    num_accepted_tokens=4,
)
ALONE = SegmentRecord(4, segment(Writer.TARGET, 8), accepted=None)


def record(index: int, text: str, verdict: str = "accepted", **fields: Any) -> dict[str, Any]:
    """As the gateway sends it; a rewritten one replaces a draft."""
    is_rewritten = verdict == "rewritten"
    decided = SegmentRecord(
        index,
        segment(Writer.TARGET if is_rewritten else Writer.DRAFT, 5, text),
        accepted=not is_rewritten,
        judgement=Judgement(0.5, 0.4),
        draw=0.1,
        rejected=segment(Writer.DRAFT, 4, f"refused {index}") if is_rewritten else None,
        times=TIMES,
    )
    return {**SegmentTrace.of(decided).model_dump(mode="json"), **fields}
