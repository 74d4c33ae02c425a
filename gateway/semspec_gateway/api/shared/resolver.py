"""What a client asks for, in any API, and what decides all that it leaves open: the `Request` that is served."""

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from semspec.decoding import Strategy
from semspec.errors import InvalidRequest, NotFound, SemspecError
from semspec.types import Acceptance, Segmentation
from semspec_gateway.api.shared.requests import GenerationBody, TextRequest
from semspec_gateway.generation.audit import Audit
from semspec_gateway.generation.preparation import (
    answer_strategy,
    check,
    check_strategy,
    setting_at,
    supported_logprobs,
)
from semspec_gateway.generation.request import AnswerOptions, GenerationRequest, RequestPrompt
from semspec_gateway.options import Defaults
from semspec_gateway.readiness import Readiness
from semspec_gateway.served import Served
from semspec_gateway.settings import GatewaySettings

PLACEHOLDERS = ("tgi", "dummy")
"""Names that Text Generation Inference's clients send for "the model that is served"."""

PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias")
"""Fields that change logits before a draw."""

EFFORT = "reasoning_effort"
"""The variable of chat templates by which OpenAI's field of this name is served."""
EFFORT_PARAMETER = f"chat_template_kwargs.{EFFORT}"

EFFORT_BUDGETS = {"none": 0, "minimal": 128, "low": 1024, "medium": 2048, "high": 4096}
"""LiteLLM's tokens of reasoning, for models whose template does not read an effort; other efforts have no limit."""

Api = Literal["chat", "completions", "responses", "tgi"]

OPTIONS = (
    *(
        "strategy",
        "rewrite",
        "probes",
        "num_speculative_tokens",
        "acceptance.threshold",
    ),
    *("segmentation", "strictness", "exact_answer", "session"),
)
"""Own options of a request that errors below this layer name."""
_PREFIXES: dict[Api, str] = {
    "chat": "chatcmpl",
    "completions": "cmpl",
    "tgi": "tgi",
    "responses": "resp",
}


A = TypeVar("A", bound=AnswerOptions)


def answer_options(
    kind: type[A], api: Api, body: GenerationBody, fields: Mapping[str, str], **own: Any
) -> A:
    """Return the options of an API's answers. `fields`: see `naming`; `own`: what only this API has."""
    semspec = {name: f"semspec.{name}" for name in OPTIONS}
    if isinstance(body, TextRequest) and ":" in (body.model or ""):
        semspec["strategy"] = "model"
    penalties = next((name for name in PENALTIES if getattr(body, name, None) is not None), "")
    fields = {**semspec, "penalties": penalties, **fields}
    return kind(api=api, fields=fields, trace=bool(body.semspec.trace), **own)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRequest:
    """What a client asks for, before any default is filled in."""

    body: GenerationBody
    prompts: tuple[RequestPrompt, ...]
    max_tokens: int | None
    num_logprobs: int | None
    answer: AnswerOptions
    grammar: str = ""
    """The answer follows it: written by the target alone, unless a strategy is chosen."""
    instructions: str = ""
    tools: tuple[Mapping[str, Any], ...] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)
    """See `GenerationRequest`."""
    thinking_token_budget: int | None = None
    keep_stop: bool = False
    may_reason: bool = True
    are_logprobs_optional: bool = False
    is_kept: bool = True
    """False: routes do not give the answer by its id once it has ended."""
    default_max_tokens: int | None = None
    """Largest default budget, unless the operator sets one; None: a share of the window."""


@contextmanager
def naming(fields: Mapping[str, str]) -> Iterator[None]:
    """Replaces, in errors, the names of parameters by the API's own `fields`."""
    try:
        yield
    except SemspecError as error:
        parameter = error.parameter or ""
        if parameter not in fields:
            raise
        message, field = error.message, fields[parameter]
        if message.startswith(f"{parameter}: "):
            message = f"{field}{message.removeprefix(parameter)}"
        raise type(error)(message.replace("<penalties>", fields["penalties"]), field) from error


def variables_of(
    given: Mapping[str, Any] | None, effort: str | None, field: str
) -> Mapping[str, Any]:
    """The chat template's variables; `field` sets the effort. Raises: InvalidRequest when that is given twice."""
    if effort is None:
        return given or {}
    if given and EFFORT in given:
        raise InvalidRequest(
            f"{field} sets the variable {EFFORT!r} of chat_template_kwargs; give one of them", field
        )
    return {**(given or {}), EFFORT: effort}


def model_names(settings: GatewaySettings, strategies: Iterable[str]) -> list[str]:
    """Model names of the API: the pair's own name, and one for each of `strategies`."""
    return [settings.name, *(f"{settings.name}:{strategy}" for strategy in strategies)]


def check_model(
    model: str | None, settings: GatewaySettings, readiness: Readiness
) -> tuple[str, str]:
    """Return the model name that a request means, NAME[@VERSION][:STRATEGY], and its strategy, which may be empty.

    Raises: NotFound.
    """
    name = settings.name if model is None or model in PLACEHOLDERS else model
    pair, _, alias = name.partition(":")
    pair, at, version = pair.partition("@")
    known = (
        pair == settings.name
        and alias in ("", *readiness.table)
        and not (":" in name and not alias)
    )
    if not known or (at and version != readiness.version):
        raise NotFound(
            f"the model {name!r} does not exist; GET /v1/models lists those that do", "model"
        )
    return name, alias


@dataclass(frozen=True, slots=True)
class Resolver:
    """Decides what a request leaves open."""

    readiness: Readiness
    settings: GatewaySettings
    audit: Audit | None

    def resolve(
        self, asked: ClientRequest, id: str, owner: str
    ) -> tuple[GenerationRequest, Served]:
        """The request that is served, and by what. Nothing of it changes later.

        Raises: InvalidRequest, NotFound, Unavailable, Mismatch.
        """
        body, options = asked.body, asked.body.semspec
        num_choices = self._num_choices(asked)
        asked_model = body.model if isinstance(body, TextRequest) else None
        model, alias = check_model(asked_model, self.settings, self.readiness)
        served = self.readiness.require()
        defaults = served.defaults(self.settings.defaults)
        strategy = self._strategy(asked, model, alias, served, defaults)
        strictness, expected = options.strictness, None
        if strictness is None and self.audit:
            strictness = self.audit.tightened_strictness(strategy, served)
        if strictness is not None:
            setting = setting_at(strictness, strategy, served)
            expected, acceptance = setting.expected, Acceptance("threshold", setting.threshold)
            changed = replace(strategy.options, acceptance=acceptance)
            strategy = served.strategies[strategy.name](changed)
        num_logprobs = supported_logprobs(
            asked.num_logprobs, asked.are_logprobs_optional, strategy, served
        )
        answer = None
        if options.exact_answer:
            is_shaped = asked.grammar or body.least_tokens or not body.penalties.is_neutral
            answer = answer_strategy(strategy, served, bool(is_shaped) or num_logprobs is not None)
        variables, budget = dict(asked.variables), asked.thinking_token_budget
        if (
            EFFORT_PARAMETER in asked.answer.fields
            and EFFORT not in served.target.template_variables
        ):
            effort = EFFORT_BUDGETS.get(variables.pop(EFFORT))
            budget = effort if budget is None else budget
        request = GenerationRequest(
            id=id,
            created=int(time.time()),
            model=model,
            prompts=asked.prompts,
            num_choices=num_choices,
            sampling=body.sampling(defaults),
            penalties=body.penalties,
            strategy=strategy,
            answer_strategy=answer,
            segmentation=Segmentation(options.segmentation or defaults.segmentation),
            num_logprobs=num_logprobs,
            grammar=asked.grammar,
            show_drafts=bool(options.trace and body.stream),
            max_tokens=asked.max_tokens,
            min_tokens=body.least_tokens,
            stops=body.stops,
            keep_stop=asked.keep_stop,
            may_reason=asked.may_reason,
            strictness=strictness,
            expected=expected,
            session=options.session,
            owner=owner,
            instructions=asked.instructions,
            tools=asked.tools,
            variables=variables,
            thinking_token_budget=budget,
            answer=asked.answer,
            is_kept=asked.is_kept,
            default_max_tokens=asked.default_max_tokens,
        )
        check(request, served)
        return request, served

    def _strategy(
        self, asked: ClientRequest, model: str, alias: str, served: Served, defaults: Defaults
    ) -> Strategy:
        """The strategy that the request and the defaults choose. Raises: InvalidRequest."""
        options = asked.body.semspec
        if alias and options.strategy not in (None, alias):
            raise InvalidRequest(
                f"the model {model!r} already names another strategy", "semspec.strategy"
            )
        needs_one_writer = bool(asked.grammar) or not asked.body.penalties.is_neutral
        default = "target" if needs_one_writer else served.default_name(defaults)
        name = alias or options.strategy or default
        if name not in self.readiness.table:
            raise InvalidRequest(
                f"strategy: it should be one of {', '.join(self.readiness.table)}", "strategy"
            )
        strategy = served.strategies[name](defaults.options(name, options))
        check_strategy(strategy, served, defaults)
        return strategy

    def _num_choices(self, asked: ClientRequest) -> int:
        """Of all prompts together. Raises: InvalidRequest."""
        limit, session = self.settings.max_n, asked.body.semspec.session
        num_choices, num_prompts = asked.body.num_choices, len(asked.prompts)
        if num_choices > limit:
            raise InvalidRequest(f"n is {num_choices}, but at most {limit} choices are served", "n")
        if num_prompts * num_choices > limit:
            message = (
                f"{num_prompts} prompts of n {num_choices} are over the limit of {limit} choices"
            )
            raise InvalidRequest(f"{message}; send fewer prompts at once", "prompt")
        if session is not None and not isinstance(asked.prompts[0], tuple):
            raise InvalidRequest(
                "sessions store the turns of a chat; use /v1/chat/completions", "semspec.session"
            )
        if num_choices > 1 and session is not None:
            raise InvalidRequest("a session has one next turn; leave out n or the session", "n")
        return num_prompts * num_choices


def new_id(api: Api) -> str:
    return f"{_PREFIXES[api]}-{secrets.token_hex(16)}"
