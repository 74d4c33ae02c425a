"""One record of a trace as JSON, and back: the same in a stream, a response, Redis and `GET .../trace`."""

import math
from dataclasses import asdict
from typing import Any, Literal

from pydantic import JsonValue

from semspec.types import (
    Forecast,
    Judgement,
    Segment,
    SegmentEnd,
    SegmentRecord,
    StageTimes,
    TokenLogprob,
    Writer,
)

Json = dict[str, JsonValue]
Verdict = Literal["accepted", "rewritten", "unjudged"]

_AS_THEY_ARE = ("index", "draw", "num_proposed_tokens", "num_accepted_tokens", "score", "fallback")


def verdict(record: SegmentRecord) -> Verdict:
    """How the segment came to be kept."""
    if record.accepted is None:
        return "unjudged"
    return "accepted" if record.accepted else "rewritten"


def record_json(record: SegmentRecord) -> Json:
    """All that is known of a kept segment. `ratio` is null where the draft's probability is 0; `logprobs` is there only
    if asked for."""
    body: Json = {
        "index": record.index,
        **_segment(record.segment),
        "verdict": verdict(record),
        **_judgement(record.judgement),
        "draw": record.draw,
        "rejected": None if record.rejected is None else _segment(record.rejected),
        "num_proposed_tokens": record.num_proposed_tokens,
        "num_accepted_tokens": record.num_accepted_tokens,
        "score": record.score,
        "times": asdict(record.times),
        "fallback": record.fallback,
        "forecast": None if record.forecast is None else asdict(record.forecast),
    }
    if record.logprobs is not None:
        body["logprobs"] = [_logprob(token) for token in record.logprobs]
    return body


def record_from_json(body: Any) -> SegmentRecord:
    """The record that `record_json` wrote."""
    judgement = (body["draft_probability"], body["target_probability"])
    return SegmentRecord(
        **{name: body[name] for name in _AS_THEY_ARE},
        segment=_segment_from(body),
        accepted={"accepted": True, "rewritten": False, "unjudged": None}[body["verdict"]],
        judgement=None if judgement == (None, None) else Judgement(*judgement),
        rejected=None if body["rejected"] is None else _segment_from(body["rejected"]),
        times=StageTimes(**body["times"]),
        forecast=None if body["forecast"] is None else Forecast(**body["forecast"]),
        logprobs=tuple(map(_logprob_from, body["logprobs"])) if "logprobs" in body else None,
    )


def _segment(segment: Segment) -> Json:
    return {
        "text": segment.text,
        "token_ids": list(segment.token_ids),
        "num_tokens": len(segment.token_ids),
        "tokenizer": segment.tokenizer,
        "writer": segment.writer.value,
        "end": segment.end.value,
    }


def _segment_from(body: Any) -> Segment:
    token_ids, writer, end = tuple(body["token_ids"]), Writer(body["writer"]), SegmentEnd(body["end"])
    return Segment(body["text"], token_ids, body["tokenizer"], writer, end)


def _judgement(judgement: Judgement | None) -> Json:
    if judgement is None:
        return {"draft_probability": None, "target_probability": None, "ratio": None}
    draft_probability, target_probability = judgement.draft_probability, judgement.target_probability
    ratio = target_probability / draft_probability if draft_probability else math.inf
    return {
        "draft_probability": draft_probability,
        "target_probability": target_probability,
        "ratio": ratio if math.isfinite(ratio) else None,
    }


def _logprob(token: TokenLogprob) -> Json:
    alternatives: list[JsonValue] = [_logprob(other) for other in token.alternatives]
    return {
        "token_id": token.token_id,
        "bytes": list(token.data),
        "logprob": token.logprob,
        "alternatives": alternatives,
    }


def _logprob_from(body: Any) -> TokenLogprob:
    alternatives = tuple(map(_logprob_from, body["alternatives"]))
    return TokenLogprob(body["token_id"], bytes(body["bytes"]), body["logprob"], alternatives)
