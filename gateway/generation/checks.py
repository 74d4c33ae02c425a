"""What a request needs of the services it meets, and its limits there: strategy, format, sampling, budget, deadline."""

import json
from collections.abc import Sequence
from dataclasses import replace

from semspec.decoding import Generation, Prompts, Strategy
from semspec.errors import ContextTooLong, InvalidRequest
from semspec.gateway.generation.request import ChoiceRequest, Request
from semspec.gateway.generation.strictness import Setting, at_strictness
from semspec.gateway.served import Served
from semspec.gateway.settings import GatewaySettings
from semspec.types import GRAMMAR, Message, Writer

DEFAULT_SHARE = 4
"""The default budget is the window divided by this: 32,768 of 131,072 tokens, which R1's authors recommend."""
LEAST_DEADLINE_S = 600.0
TOKEN_DEADLINE_S = 0.1
"""Seconds allowed for a token of the budget."""


def check(request: Request, strategy: Strategy, served: Served) -> None:
    """Raises: InvalidRequest if the services do not support the request; it names parameters, which each API
    has a field for (`naming`)."""
    _check_segmentation(request, strategy, served)
    _check_grammar(request, strategy, served)
    if request.plan.sampling.min_p and not served.supports_min_p(strategy):
        raise InvalidRequest("min_p: a server writes for one of the models that may not know it; leave it out", "min_p")
    _check_penalties(request, strategy, served)
    _check_variables(request, served)


def check_strategy(strategy: Strategy, plan: Generation, served: Served) -> None:
    """Raises: InvalidRequest, which names the strategy, or the option of it that is not supported."""
    if (unsupported_reason := served.unsupported_reason(strategy)) is None:
        return
    plain = replace(plan, options=replace(plan.options, rewrite="target", probes=""))
    if served.unsupported_reason(served.strategy(plain)) is not None:
        raise InvalidRequest(unsupported_reason, "strategy")
    is_of_rewrite = strategy.needs_one_vocabulary or strategy.needs_datastore
    raise InvalidRequest(unsupported_reason, "rewrite" if is_of_rewrite else "probes")


def supported_logprobs(num_logprobs: int | None, is_optional: bool, strategy: Strategy, served: Served) -> int | None:
    """`num_logprobs`, or none where they are optional and the strategy has none. Raises: InvalidRequest."""
    if num_logprobs is None or served.supports_logprobs(strategy):
        return num_logprobs
    if is_optional:
        return None
    message = f"logprobs: the strategy {strategy.name!r} has no logprobs"
    raise InvalidRequest(f"{message}; leave it out, or choose another strategy", "logprobs")


def setting_at(strictness: float, strategy: Strategy, served: Served) -> Setting:
    """The threshold that a strictness selects. Raises: InvalidRequest."""
    if strategy.needs_calibration and served.likelihood is not None:
        return at_strictness(strictness, served.likelihood.curve)
    if not strategy.is_judged_by_main_probes:
        message = f"strictness needs the pair's own probes, which the strategy {strategy.name!r} does not use"
        raise InvalidRequest(f"{message}; leave it out, or choose 'semantic' and no probes", "strictness")
    return at_strictness(strictness, served.verifier.operating_points)


def _check_grammar(request: Request, strategy: Strategy, served: Served) -> None:
    if not request.plan.grammar:
        return
    if not strategy.supports_grammars:
        message = f"the strategy {strategy.name!r} judges what is written, and cannot hold it to a format"
        raise InvalidRequest(f"{message}; leave it out, or choose 'target'", "strategy")
    if not served.supports_grammars(strategy):
        message = f"{GRAMMAR}: {served.target.model} cannot be held to a format"
        remedy = "it needs the engine 'auto', 'fast' or 'transformers', and a vocabulary that spells any text"
        raise InvalidRequest(f"{message}: {remedy}; leave it out", GRAMMAR)


def _check_penalties(request: Request, strategy: Strategy, served: Served) -> None:
    penalties = request.plan.penalties
    if penalties.is_neutral:
        return
    if not strategy.supports_grammars:
        message = f"the strategy {strategy.name!r} judges or verifies drafts by the models' own probabilities"
        raise InvalidRequest(
            f"{message}, not by penalised ones; leave out <penalties>, or choose 'target'",
            "strategy",
        )
    if not served.supports_penalties(strategy):
        message = f"penalties: {served.target.model} takes no penalties"
        remedy = "it needs the engine 'auto', 'fast' or 'transformers'"
        raise InvalidRequest(f"{message}: {remedy}; leave it out", "penalties")
    if not penalties.logit_bias:
        return
    if Writer.DRAFT in strategy.writers and served.draft.tokenizer != served.target.tokenizer:
        message = "logit_bias: draft and target have other token ids"
        raise InvalidRequest(f"{message}; leave it out, or choose 'target'", "logit_bias")
    last, limit = max(token for token, _ in penalties.logit_bias), served.target.num_token_ids
    if last >= limit:
        message = f"logit_bias: {last} is no token of {served.target.model}, whose ids are below {limit}"
        raise InvalidRequest(f"{message}; POST /tokenize tells those of a text", "logit_bias")


def _check_variables(request: Request, served: Served) -> None:
    known = served.target.template_variables
    for name in json.loads(request.variables or "{}"):
        if name not in known:
            field, known_names = f"chat_template_kwargs.{name}", ", ".join(known) or "none"
            message = (
                f"{field}: the chat template of {served.target.model} has no variable {name!r} that a request may set"
            )
            raise InvalidRequest(f"{message}; leave it out (it has: {known_names})", field)


def _check_segmentation(request: Request, strategy: Strategy, served: Served) -> None:
    supported = served.segmentations(strategy)
    if request.plan.segmentation not in supported:
        name, names = request.plan.segmentation.value, ", ".join(sorted(supported))
        message = f"the services do not support the segmentation {name!r} for this strategy, only: {names}"
        raise InvalidRequest(message, "segmentation")


def check_session_size(request: Request, turns: Sequence[Message], max_bytes: int) -> None:
    num_bytes = sum(len((turn.content + turn.tool_calls).encode()) for turn in (*turns, *request.messages))
    if request.session is not None and num_bytes > max_bytes:
        message = f"session {request.session} would exceed {max_bytes} bytes; start a new one"
        raise InvalidRequest(message, "session")


def deadline_s(choices: Sequence[ChoiceRequest], settings: GatewaySettings) -> float:
    """Longest that the choices may take together, in seconds."""
    max_tokens = max(choice.generation.max_tokens for choice in choices)
    return settings.generation_deadline_s or max(LEAST_DEADLINE_S, max_tokens * TOKEN_DEADLINE_S)


def budget(request: Request, prompts: Prompts, served: Served, default_max_tokens: int | None) -> int:
    """Maximum number of output tokens. Raises: ContextTooLong."""
    rooms = [(served.target.max_context_tokens, len(prompts.target.token_ids))]
    if Writer.DRAFT in served.strategy(request.plan).writers:
        own_ids = prompts.draft.token_ids if prompts.draft else ()
        rooms.append((served.draft.max_context_tokens, len(own_ids or prompts.target.token_ids)))
    window, num_prompt_tokens = min(rooms, key=lambda room: room[0] - room[1])
    num_free = window - num_prompt_tokens
    if num_free < (request.max_tokens or 1):
        requested = f" and the {request.max_tokens} requested" if request.max_tokens else ""
        message = f"the {num_prompt_tokens} tokens of the prompt{requested} exceed the window of {window} tokens"
        raise ContextTooLong(message, "prompt")
    return request.max_tokens or min(default_max_tokens or max(1, window // DEFAULT_SHARE), num_free)
