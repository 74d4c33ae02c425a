"""Statistics and token counts of choices, as in answers."""

from collections.abc import Sequence
from typing import Any

from semspec.records import share, statistics
from semspec_gateway.generation.choice import Choice

_COUNTED = (
    *("num_segments", "num_accepted", "num_rejected", "acceptance_rate", "target_ratio"),
    *("num_proposed_tokens", "num_accepted_tokens", "num_undrafted", "fallback"),
)


def numbers(choices: Sequence[Choice]) -> dict[str, Any]:
    """Statistics of one choice, or of all of a request's, as in responses."""
    counted = statistics(record for choice in choices for record in choice.records)
    latency_s = max(choice.latency_s for choice in choices)
    return {
        **{name: getattr(counted, name) for name in _COUNTED},
        "id": choices[0].id,
        "strategy": choices[0].generation.strategy.name,
        "latency_ms": latency_s * 1e3,
        "tokens_per_s": share(counted.num_tokens, latency_s),
        "degraded": any(choice.degraded for choice in choices),
    }


def usage(choices: Sequence[Choice]) -> dict[str, Any]:
    """OpenAI's token counts over all choices; the common prompt of several choices counts once."""
    firsts = choices[:: choices[0].request.num_choices_per_prompt]
    num_prompt = sum(choice.num_prompt_tokens for choice in firsts)
    num_completion = sum(choice.num_tokens for choice in choices)
    reasoning = [
        choice.num_reasoning_tokens for choice in choices if choice.num_reasoning_tokens is not None
    ]
    cached = [choice.num_cached_tokens for choice in firsts if choice.num_cached_tokens is not None]
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_completion,
        "total_tokens": num_prompt + num_completion,
        **({"prompt_tokens_details": {"cached_tokens": sum(cached)}} if cached else {}),
        **(
            {"completion_tokens_details": {"reasoning_tokens": sum(reasoning)}} if reasoning else {}
        ),
    }
