"""A generation as it grows, its statistics, and its acceptance in the terms of vLLM.

vLLM counts verification steps: a draft proposes tokens, one forward of the target decides on them. Here a step is what
was decided at once, as far as the records tell:

- a drafted segment that was judged: all its tokens were proposed, and all of them or none accepted;
- the tokens proposed one by one while the target wrote a segment (`token-level`), however many forwards that took.

The share of accepted tokens means the same as there. The mean acceptance length, 1 + accepted tokens a step, counts
tokens a decision: a kept segment has no bonus token, and a refused one costs a segment of the target's own.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Protocol

from pydantic import JsonValue

from gateway.generations.call import Call
from gateway.generations.output_text import Delta, StopChecker
from semspec.records import Json, record_json
from semspec.types import FinishReason, Generation, SegmentEnd, SegmentRecord, TokenLogprob, Writer


class Summary:
    """Grows with a generation's records."""

    def __init__(self, generation_id: str, generation: Generation, stop_checker: StopChecker) -> None:
        self.id = generation_id
        self.generation = generation
        self.stop_checker = stop_checker
        self.records: list[SegmentRecord] = []
        self.num_characters = 0
        """Of all that was written, seen or not."""
        self.finish_reason: FinishReason | None = None
        self.fallback: str | None = None
        """Why the target went on alone, if it did."""
        self.degraded = False
        """Whether the trace or the session's turns could not be stored in full."""
        self._start = perf_counter()
        self._end: float | None = None

    def add(self, record: SegmentRecord) -> Delta:
        """What the client sees of a further segment."""
        self.records.append(record)
        self.num_characters += len(record.segment.text)
        self.fallback = self.fallback or record.fallback
        return self.stop_checker.add(record.segment.text)

    def finish(self, reason: FinishReason) -> Delta:
        """What the client sees last."""
        self.finish_reason = reason
        self._end = perf_counter()
        return self.stop_checker.close()

    @property
    def text(self) -> str:
        """All that was written, seen or not."""
        return "".join(record.segment.text for record in self.records)

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...] | None:
        """Of all tokens written, if asked for."""
        if self.generation.num_logprobs is None:
            return None
        return tuple(token for record in self.records for token in record.logprobs or ())

    @property
    def seen(self) -> Delta:
        """What the client sees in all."""
        return self.stop_checker.seen

    @property
    def ended_itself(self) -> bool:
        """Whether the model said that it had finished."""
        return bool(self.records) and self.records[-1].segment.end is SegmentEnd.EOS

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(piece.token_ids) for piece in self.generation.context.pieces)

    @property
    def latency_s(self) -> float:
        """From the start to the end of decoding, or to now."""
        return (self._end or perf_counter()) - self._start

    def num_tokens(self, writer: Writer | None = None) -> int:
        """Output tokens, of one writer or of all."""
        segments = (record.segment for record in self.records)
        return sum(len(segment.token_ids) for segment in segments if writer in (None, segment.writer))

    @property
    def num_proposed_tokens(self) -> int:
        """Of the draft, for the target to verify one by one."""
        return sum(record.num_proposed_tokens for record in self.records)

    @property
    def num_accepted_tokens(self) -> int:
        """How many of these the target kept, in segments that count as written by it."""
        return sum(record.num_accepted_tokens for record in self.records)

    @property
    def num_target_tokens(self) -> int:
        """Output tokens that the target, not the draft, came up with."""
        return self.num_tokens(Writer.TARGET) - self.num_accepted_tokens

    def num_judged(self, accepted: bool) -> int:
        return sum(record.accepted is accepted for record in self.records)


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


def usage(summaries: Sequence[Summary]) -> Json:
    """OpenAI's token counts over a request's choices; their common prompt counts once."""
    num_prompt_tokens = summaries[0].num_prompt_tokens
    num_completion_tokens = sum(summary.num_tokens() for summary in summaries)
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_completion_tokens,
        "total_tokens": num_prompt_tokens + num_completion_tokens,
    }


def parameters(generation: Generation, call: Call) -> Json:
    """All that was asked for, defaults filled in, but the prompt and the seed."""
    return {
        "strategy": generation.strategy,
        "gamma": generation.gamma,
        "token_gamma": generation.token_gamma,
        "segmentation": generation.segmentation.value,
        "acceptance": {"rule": generation.acceptance.rule, "threshold": generation.acceptance.threshold},
        "strictness": call.strictness,
        "scoring": {"method": generation.scoring.method, "threshold": generation.scoring.threshold},
        "draft_ahead": generation.draft_ahead,
        "temperature": generation.sampling.temperature,
        "top_p": generation.sampling.top_p,
        "top_k": generation.sampling.top_k,
        "max_tokens": generation.max_tokens,
        "stop": list(call.stops),
    }


def statistics(summaries: Sequence[Summary], call: Call) -> Json:
    """What a response says beyond its API: the object `semspec`, and `metrics` in vLLM's shape."""
    return {
        "semspec": _extension(summaries, call),
        "metrics": {"speculative_decoding": speculative_decoding(summaries)},
    }


def _extension(summaries: Sequence[Summary], call: Call) -> Json:
    """Over all choices, and each by itself if there are several."""
    body: Json = {
        **_numbers(summaries),
        "parameters": parameters(summaries[0].generation, call),
        "expected": None if call.expected is None else asdict(call.expected),
        "seed": call.seed,
    }
    if len(summaries) > 1:
        body["choices"] = [_with_trace(_choice(summary), summary, call.trace) for summary in summaries]
        return body
    return _with_trace(body, summaries[0], call.trace)


def _choice(summary: Summary) -> Json:
    return {**_numbers([summary]), "seed": summary.generation.sampling.seed}


def _with_trace(body: Json, summary: Summary, trace: bool) -> Json:
    return {**body, "trace": [record_json(record) for record in summary.records]} if trace else body


def _numbers(summaries: Sequence[Summary]) -> Json:
    num_accepted = sum(summary.num_judged(accepted=True) for summary in summaries)
    num_rejected = sum(summary.num_judged(accepted=False) for summary in summaries)
    num_tokens = sum(summary.num_tokens() for summary in summaries)
    latency_s = max(summary.latency_s for summary in summaries)
    return {
        "id": summaries[0].id,
        "strategy": summaries[0].generation.strategy,
        "num_segments": sum(len(summary.records) for summary in summaries),
        "num_accepted": num_accepted,
        "num_rejected": num_rejected,
        "acceptance_rate": _share(num_accepted, num_accepted + num_rejected),
        "num_proposed_tokens": sum(summary.num_proposed_tokens for summary in summaries),
        "num_accepted_tokens": sum(summary.num_accepted_tokens for summary in summaries),
        "target_ratio": _share(sum(summary.num_target_tokens for summary in summaries), num_tokens),
        "latency_ms": latency_s * 1e3,
        "tokens_per_s": _share(num_tokens, latency_s),
        "fallback": next((summary.fallback for summary in summaries if summary.fallback), None),
        "degraded": any(summary.degraded for summary in summaries),
    }


def _share(part: int, whole: float) -> float | None:
    return part / whole if whole else None
