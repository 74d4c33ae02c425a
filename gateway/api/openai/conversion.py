"""Converts request bodies to `Request` objects, with every default filled in."""

import json
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from semspec.decoding import STRATEGIES, Generation
from semspec.errors import InvalidRequest, NotFound
from semspec.gateway.api.openai.formats import calls_grammar, format_grammar, offered, tools_json
from semspec.gateway.api.openai.requests import ChatRequest, CompletionRequest, GenerationRequest, SemspecOptions
from semspec.gateway.api.tgi.requests import TgiGrammar, TgiRequest
from semspec.gateway.generation.request import EFFORT, Api, Request, RequestPrompt
from semspec.gateway.settings import PLAIN_OPTIONS, GatewaySettings
from semspec.types import Acceptance, Context, Penalties, SamplingParams, Scoring, Segmentation, TokenIds

PLACEHOLDERS = ("tgi", "dummy")
"""Names that Text Generation Inference's clients send for "the model that is served"."""

PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias")
"""Fields that change logits before a draw."""

_PREFIXES: dict[Api, str] = {"chat": "chatcmpl", "completions": "cmpl", "tgi": "tgi", "responses": "resp"}


def chat_request(body: ChatRequest, settings: GatewaySettings, api: Api = "chat") -> Request:
    """Raises: InvalidRequest, NotFound."""
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs is only allowed when logprobs is true", "top_logprobs")
    messages = tuple(message.message for message in body.messages)
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise InvalidRequest("max_tokens is another name for max_completion_tokens; give one of them", "max_tokens")
    num_logprobs = (body.top_logprobs or 0) if body.logprobs else None
    budget = body.max_completion_tokens or body.max_tokens
    request = _with_variables(_request(api, body, (messages,), settings, budget, num_logprobs), body)
    tools = offered(body.tools, body.tool_choice)
    if tools and format_grammar(body.response_format):
        raise InvalidRequest("response_format is only served without tools; leave out one of them", "response_format")
    if tools:
        grammar = calls_grammar(tools, body.tool_choice, body.parallel_tool_calls is not False)
        return replace(formatted(request, body, grammar, "tools"), tools=tools_json(tools))
    return formatted(request, body, format_grammar(body.response_format), "response_format")


def _with_variables(request: Request, body: ChatRequest) -> Request:
    """The request with the chat template's variables. Raises: InvalidRequest when the effort is given twice."""
    variables = body.chat_template_kwargs or {}
    if body.reasoning_effort is not None:
        field = "reasoning.effort" if request.api == "responses" else EFFORT
        if EFFORT in variables:
            message = f"{field} sets the variable {EFFORT!r} of chat_template_kwargs; give one of them"
            raise InvalidRequest(message, field)
        variables, request = {**variables, EFFORT: body.reasoning_effort}, replace(request, effort_field=field)
    return replace(request, variables=json.dumps(variables)) if variables else request


def formatted(request: Request, body: GenerationRequest, grammar: str, field: str) -> Request:
    """The request with an answer that follows `grammar`, if that is not empty: written by the target alone, unless a
    strategy is chosen. `field`: the one that asks for it."""
    if not grammar:
        return request
    is_chosen = body.semspec.strategy is not None or request.strategy_field == "model"
    strategy = request.plan.strategy if is_chosen else "target"
    return replace(request, plan=replace(request.plan, grammar=grammar, strategy=strategy), format_field=field)


def completion_request(body: CompletionRequest, settings: GatewaySettings, api: Api = "completions") -> Request:
    """Raises: InvalidRequest, NotFound."""
    if body.semspec.session is not None:
        raise InvalidRequest("sessions store the turns of a chat; use /v1/chat/completions", "semspec.session")
    return _request(api, body, _prompts(body), settings, body.max_tokens, body.logprobs)


def _prompts(body: CompletionRequest) -> tuple[str | TokenIds, ...]:
    given = body.prompt
    if isinstance(given, str):
        return (given,)
    if ids := tuple(token for token in given if isinstance(token, int)):
        return (TokenIds(ids),)
    several = (prompt for prompt in given if not isinstance(prompt, int))
    return tuple(prompt if isinstance(prompt, str) else TokenIds(tuple(prompt)) for prompt in several)


def model_names(settings: GatewaySettings, strategies: Iterable[str] = STRATEGIES) -> list[str]:
    """Model names of the API: the pair's own name, and one for each of `strategies`."""
    return [settings.model_name, *(f"{settings.model_name}:{strategy}" for strategy in strategies)]


def _request(
    api: Api,
    body: GenerationRequest,
    prompts: Sequence[RequestPrompt],
    settings: GatewaySettings,
    max_tokens: int | None,
    num_logprobs: int | None,
) -> Request:
    num_choices = body.n or 1
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options is only allowed when stream is true", "stream_options")
    if num_choices > settings.max_n:
        raise InvalidRequest(f"n is {num_choices}, but at most {settings.max_n} choices are served", "n")
    if len(prompts) * num_choices > settings.max_n:
        message = f"{len(prompts)} prompts of n {num_choices} are over the limit of {settings.max_n} choices"
        raise InvalidRequest(f"{message}; send fewer prompts at once", "prompt")
    if num_choices > 1 and body.semspec.session is not None:
        raise InvalidRequest("a session has one next turn; leave out n or the session", "n")
    return Request(
        id=f"{_PREFIXES[api]}-{secrets.token_hex(16)}",
        api=api,
        created=int(time.time()),
        model=check_model(body.model, settings),
        prompt=prompts[0],
        other_prompts=tuple(prompts[1:]),
        num_choices=len(prompts) * num_choices,
        seed=secrets.randbits(53) if body.seed is None else body.seed,
        max_tokens=max_tokens,
        plan=replace(_plan(body, settings), num_logprobs=num_logprobs),
        penalty_field=_penalty_field(api, body),
        stops=_stops(body),
        keep_stop=False,
        strictness=body.semspec.strictness,
        session=body.semspec.session,
        stream=bool(body.stream),
        include_usage=body.stream_options is not None and bool(body.stream_options.include_usage),
        trace=bool(body.semspec.trace),
        may_be_collected=body.store is not False,
    )


def check_model(model: str | None, settings: GatewaySettings) -> str:
    """The name of the model that a request means. Raises: NotFound."""
    name = settings.model_name if model is None or model in PLACEHOLDERS else model
    if name not in model_names(settings):
        raise NotFound(f"the model {name!r} does not exist; GET /v1/models lists those that do", "model")
    return name


def _plan(body: GenerationRequest, settings: GatewaySettings) -> Generation:
    options, penalties, name = body.semspec, _penalties(body), check_model(body.model, settings)
    strategy = _strategy(name, options, settings)
    if not penalties.is_neutral and options.strategy is None and name == settings.model_name:
        strategy = "target"  # as for an answer in a format: one model writes it
    plan = Generation(
        context=Context(()),
        sampling=SamplingParams(
            temperature=settings.defaults.temperature if body.temperature is None else body.temperature,
            top_p=settings.defaults.top_p if body.top_p is None else body.top_p,
            top_k=max(0, body.top_k or 0),
            min_p=body.min_p or 0.0,
        ),
        penalties=penalties,
        strategy=strategy,
        **_plain_options(options, settings),
        segmentation=Segmentation(options.segmentation or settings.defaults.segmentation),
        acceptance=_acceptance(options, settings),
        scoring=_scoring(options, settings),
        show_drafts=bool(options.trace and body.stream),
    )
    if check := STRATEGIES[plan.strategy].check:
        check(plan)
    return plan


def _penalties(body: GenerationRequest) -> Penalties:
    biases = ((int(token), bias) for token, bias in (body.logit_bias or {}).items())
    return Penalties(
        body.presence_penalty or 0.0,
        body.frequency_penalty or 0.0,
        1.0 if body.repetition_penalty is None else body.repetition_penalty,
        tuple(sorted(biases)),
    )


def _penalty_field(api: Api, body: GenerationRequest) -> str:
    """The first field of a request that changes logits."""
    name = next((name for name in PENALTIES if getattr(body, name) is not None), "")
    return f"parameters.{name}" if name and api == "tgi" else name


def _plain_options(options: SemspecOptions, settings: GatewaySettings) -> dict[str, Any]:
    """The strategies' options, from the request or by default."""
    given = {name: getattr(options, name, None) for name in PLAIN_OPTIONS}
    return {name: getattr(settings.defaults, name) if value is None else value for name, value in given.items()}


def _stops(body: GenerationRequest) -> tuple[str, ...]:
    return (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())


def _strategy(model: str, options: SemspecOptions, settings: GatewaySettings) -> str:
    alias = model.removeprefix(settings.model_name).lstrip(":") or None
    if alias is not None and options.strategy not in (None, alias):
        raise InvalidRequest(f"the model {model!r} already names another strategy", "semspec.strategy")
    return str(alias or options.strategy or settings.defaults.strategy)


def _acceptance(options: SemspecOptions, settings: GatewaySettings) -> Acceptance:
    given = options.acceptance
    rule = given.rule or (settings.defaults.acceptance_rule if given.threshold is None else "threshold")
    return Acceptance(rule, settings.defaults.threshold if given.threshold is None else given.threshold)


def _scoring(options: SemspecOptions, settings: GatewaySettings) -> Scoring:
    given = options.scoring
    threshold = settings.defaults.score_threshold if given.threshold is None else given.threshold
    return Scoring(given.method or settings.defaults.score_method, threshold)


class TextRequest(CompletionRequest):
    """A request to TGI's API as a plain completion request."""

    details: bool = False
    full_text: bool = False
    """Whether the text begins with the prompt."""
    grammar: TgiGrammar | None = None


def text_request(body: TgiRequest, stream: bool, settings: GatewaySettings) -> TextRequest:
    """Raises: InvalidRequest when the body's `stream` contradicts the route."""
    if body.stream is not None and body.stream != stream:
        other = "/generate_stream" if body.stream else "/generate"
        raise InvalidRequest(f"stream contradicts this route; leave it out, or use {other}", "stream")
    parameters = body.parameters
    return TextRequest(
        model=settings.model_name,
        prompt=body.inputs,
        stream=stream,
        seed=parameters.seed,
        temperature=0 if parameters.is_greedy else parameters.temperature or 1,
        top_p=parameters.top_p or 1,
        top_k=parameters.top_k or 0,
        repetition_penalty=parameters.repetition_penalty,
        stop=parameters.stop,
        max_tokens=parameters.max_new_tokens,
        logprobs=parameters.top_n_tokens,
        semspec=body.semspec,
        details=bool(parameters.details),
        full_text=bool(parameters.return_full_text),
        grammar=parameters.grammar,
    )


def tgi_request(body: TextRequest, settings: GatewaySettings) -> Request:
    """Requests logprobs wherever TGI's response lists tokens, since TGI reports each token's logprob.

    Raises: InvalidRequest.
    """
    request = completion_request(body, settings, "tgi")
    if body.grammar is not None:
        request = formatted(request, body, body.grammar.grammar, "parameters.grammar")
    shows_tokens = body.stream or body.details
    plan = replace(request.plan, num_logprobs=body.logprobs or (0 if shows_tokens else None), show_drafts=False)
    return replace(request, plan=plan, keep_stop=True, details=body.details, full_text=body.full_text)
