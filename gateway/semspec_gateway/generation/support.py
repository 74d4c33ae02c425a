"""Checks a request against what the services support."""

from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter

from semspec.decoding import Strategy
from semspec.errors import InvalidField, InvalidRequest
from semspec.types import GRAMMAR, Penalties, Writer
from semspec_gateway.generation.request import GenerationRequest, Setting, at_strictness
from semspec_gateway.served import Served


def check(request: GenerationRequest, served: Served) -> None:
    """Check that the services support the request. Raises: InvalidRequest, whose parameter `naming` translates."""
    if refusal := next(_refusals(request, served), None):
        raise refusal


def _refusals(request: GenerationRequest, served: Served) -> Iterator[InvalidRequest]:
    """Yield an error for each part of the request that the services do not support."""
    strategy, penalties, target = request.strategy, request.penalties, served.target
    writers = served.writers(strategy)
    if request.segmentation not in (supported := served.segmentations(strategy)):
        name, names = request.segmentation.value, ", ".join(sorted(supported))
        yield InvalidRequest(
            f"the services do not support the segmentation {name!r} for this strategy, only: {names}",
            "segmentation",
        )
    supports_grammar = strategy.supports_grammars or (
        request.answer_strategy and not strategy.verifies_tokens
    )
    if request.grammar and not supports_grammar:
        choices = "or choose 'target'"
        if not strategy.verifies_tokens:
            choices = "choose 'target', or send exact_answer"
        yield InvalidRequest(
            f"the strategy {strategy.name!r} cannot hold drafts to a format",
            "strategy",
            remedy=f"leave it out, {choices}",
        )
    if request.grammar and (
        unable := [info.model for info in writers if not info.supports_grammars]
    ):
        reason = "its vocabulary cannot spell every text, or a server writes for it"
        message = f"{unable[0]} cannot be held to a format: {reason}"
        yield InvalidField(message, GRAMMAR, remedy="leave it out")
    if request.thinking_token_budget is not None and request.num_logprobs is not None:
        message = "there are no logprobs where the budget ends the reasoning"
        yield InvalidField(message, "thinking_token_budget", remedy="leave out one of them")
    if request.min_tokens and (strategy.verifies_tokens or request.grammar):
        yield InvalidRequest(
            "min_tokens, ignore_eos: not supported in a format, or by a strategy that verifies tokens",
            "min_tokens",
            remedy="leave them out",
        )
    if request.min_tokens and not all(info.supports_penalties for info in writers):
        yield InvalidRequest(
            "min_tokens, ignore_eos: not supported, because a server writes for one of the models",
            "min_tokens",
            remedy="leave them out",
        )
    if request.sampling.min_p and not all(info.supports_min_p for info in writers):
        message = "not supported: the server that writes for one of the models may not know it"
        yield InvalidField(message, "min_p", remedy="leave it out")
    if not (penalties.is_neutral or strategy.supports_grammars):
        yield InvalidRequest(
            f"the strategy {strategy.name!r} judges or verifies drafts by probabilities without penalties",
            "strategy",
            remedy=f"leave out {' and '.join(_fields_of(penalties))}, or choose 'target'",
        )
    if not penalties.is_neutral and (
        unable := [info.model for info in writers if not info.supports_penalties]
    ):
        message = f"{unable[0]} does not support penalties, because a server writes for it"
        first, *_ = fields = _fields_of(penalties)
        yield InvalidField(message, first, remedy=f"leave out {' and '.join(fields)}")
    if (
        penalties.logit_bias
        and Writer.DRAFT in strategy.writers
        and served.draft.tokenizer != target.tokenizer
    ):
        yield InvalidField(
            "draft and target have different token ids",
            "logit_bias",
            remedy="leave it out, or choose 'target'",
        )
    last = max((token for token, _ in penalties.logit_bias), default=-1)
    smallest = min(writers, key=attrgetter("num_token_ids"))
    if last >= smallest.num_token_ids:
        yield InvalidField(
            f"{last} is not a token id of {smallest.model}: its ids are below {smallest.num_token_ids}",
            "logit_bias",
            remedy="POST /tokenize returns the ids of a text",
        )
    for name in request.variables:
        if name not in target.template_variables:
            known = ", ".join(target.template_variables) or "none"
            yield InvalidField(
                f"the chat template of {target.model} has no variable {name!r} that a request may set",
                f"chat_template_kwargs.{name}",
                remedy=f"leave it out (it has: {known})",
            )


def _fields_of(penalties: Penalties) -> list[str]:
    """Return the fields of a request that set `penalties`."""
    values = {
        "presence_penalty": penalties.presence,
        "frequency_penalty": penalties.frequency,
        "repetition_penalty": penalties.repetition - 1,
        "logit_bias": penalties.logit_bias,
    }
    return [name for name, value in values.items() if value]


def check_strategy(strategy: Strategy, served: Served) -> None:
    """Check that the pair supports `strategy`.

    Raises: InvalidRequest, which names the strategy, or its option, that is not supported, and what is.
    """
    if (reason := served.unsupported_reason(strategy)) is None:
        return
    plain = replace(strategy.options, rewrite="target", probes="")
    parameter = "rewrite" if strategy.verifies_tokens else "probes"
    if served.unsupported_reason(served.strategies[strategy.name](plain)) is not None:
        parameter = "strategy"
    raise InvalidRequest(
        reason.message,
        parameter,
        remedy=f"{reason.remedy}; {served.support}",
        operator_hint=reason.operator_hint,
    )


def supported_logprobs(
    num_logprobs: int | None, is_optional: bool, strategy: Strategy, served: Served
) -> int | None:
    """Return `num_logprobs`, or None if they are optional and the strategy has none. Raises: InvalidRequest."""
    if num_logprobs is None or served.supports_logprobs(strategy):
        return num_logprobs
    if is_optional:
        return None
    raise InvalidField(
        f"the strategy {strategy.name!r} has no logprobs",
        "logprobs",
        remedy="leave it out, or choose another strategy",
    )


def answer_strategy(
    strategy: Strategy, served: Served, needs_generate: bool = False
) -> Strategy | None:
    """Choose the strategy that writes an exact answer: token-level speculation if the pair supports it, else the target
    alone; None if `strategy` is exact itself.

    `needs_generate`: whether the request has logprobs, a grammar, penalties or `min_tokens`, which need `generate`.
    Raises: InvalidRequest when an option is beyond the limits of token-level speculation.
    """
    if strategy.is_exact:
        return None
    if not needs_generate and (verified := served.strategies.get("token-level")):
        answer = verified(strategy.options)
        if served.unsupported_reason(answer) is None:
            return answer
    return served.strategies["target"](strategy.options)


def setting_at(strictness: float, strategy: Strategy, served: Served) -> Setting:
    """Return the threshold that a strictness selects. Raises: InvalidRequest."""
    if strategy.needs_calibration and served.likelihood is not None:
        return at_strictness(strictness, served.likelihood.curve)
    if not strategy.is_judged_by_main_probes:
        message = f"strictness needs the pair's own probes, which the strategy {strategy.name!r} does not use"
        remedy = "leave it out, or choose 'semantic' and no probes"
        raise InvalidRequest(message, "strictness", remedy=remedy)
    return at_strictness(strictness, served.verifier.operating_points)
