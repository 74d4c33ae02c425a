"""What came of a request, in numbers."""

from collections.abc import Sequence
from dataclasses import asdict

from gateway.generations.call import Call
from gateway.generations.summary import Summary, speculative_decoding
from semspec.records import Json, record_json
from semspec.types import Generation


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
