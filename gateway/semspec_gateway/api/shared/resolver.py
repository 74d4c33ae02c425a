"""What a client asks for, in any API, and what decides all that it leaves open: the `Request` that is served."""

import json
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict

from semspec.decoding import Generation
from semspec.errors import InvalidField, InvalidRequest, NotFound, SemspecError
from semspec.types import Acceptance, Context, Penalties, SamplingParams, Segmentation
from semspec_gateway.api.shared.requests import GenerationRequest
from semspec_gateway.generation.audit import Audit
from semspec_gateway.generation.preparation import (
    answer_strategy,
    check,
    check_strategy,
    setting_at,
    supported_logprobs,
)
from semspec_gateway.generation.request import Request, RequestPrompt
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
_NEVER = 2**31 - 1
_PREFIXES: dict[Api, str] = {
    "chat": "chatcmpl",
    "completions": "cmpl",
    "tgi": "tgi",
    "responses": "resp",
}


class AnswerOptions(BaseModel):
    """What an API needs, beside the request, to format its answer; stored with the request."""

    model_config = ConfigDict(frozen=True)

    api: Api
    fields: Mapping[str, str]
    """The API's fields for the parameters that errors name, see `naming`."""
    trace: bool
    include_usage: bool

    @classmethod
    def of(cls, api: Api, body: GenerationRequest, fields: Mapping[str, str], **own: Any) -> Self:
        """`fields`: those of the API; `own`: what its answers depend on beside the fields of each body."""
        semspec = {name: f"semspec.{name}" for name in OPTIONS}
        if ":" in (body.model or ""):
            semspec["strategy"] = "model"
        penalties = next((name for name in PENALTIES if getattr(body, name) is not None), "")
        include_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        return cls(
            api=api,
            fields={**semspec, "penalties": penalties, **fields},
            trace=bool(body.semspec.trace),
            include_usage=include_usage,
            **own,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRequest:
    """What a client asks for, before any default is filled in."""

    body: GenerationRequest
    """The fields that all APIs share."""
    prompts: tuple[RequestPrompt, ...]
    max_tokens: int | None
    num_logprobs: int | None
    answer: AnswerOptions
    grammar: str = ""
    """The answer follows it: written by the target alone, unless a strategy is chosen."""
    instructions: str = ""
    tools: str = ""
    variables: Mapping[str, Any] | None = None
    """Of the chat template."""
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
    """Name the parameters of errors by the API's own `fields`."""
    try:
        yield
    except SemspecError as error:
        if (field := fields.get(error.parameter or "")) is None:
            raise
        raise error.about(field) from error


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

    def resolve(self, asked: ClientRequest, id: str, owner: str) -> tuple[Request, Served]:
        """The request that is served, and by what. Nothing of it changes later.

        Raises: InvalidRequest, NotFound, Unavailable, Mismatch.
        """
        body, options = asked.body, asked.body.semspec
        num_choices = self._num_choices(asked)
        model, alias = check_model(body.model, self.settings, self.readiness)
        served = self.readiness.require()
        plan = self._plan(asked, model, alias, served)
        strategy = served.strategy(plan)
        check_strategy(strategy, plan, served, served.defaults(self.settings.defaults))
        strictness, expected, acceptance = options.strictness, None, strategy.options.acceptance
        if strictness is None and self.audit:
            strictness = self.audit.tightened_strictness(strategy, served)
        if strictness is not None:
            setting = setting_at(strictness, strategy, served)
            expected, acceptance = setting.expected, Acceptance("threshold", setting.threshold)
        plan = replace(
            plan,
            options=replace(strategy.options, acceptance=acceptance),
            num_logprobs=supported_logprobs(
                asked.num_logprobs, asked.are_logprobs_optional, strategy, served
            ),
        )
        if options.exact_answer:
            plan = replace(plan, answer_strategy=answer_strategy(plan, strategy, served))
        variables, budget = dict(asked.variables or {}), asked.thinking_token_budget
        if (
            EFFORT_PARAMETER in asked.answer.fields
            and EFFORT not in served.target.template_variables
        ):
            effort = EFFORT_BUDGETS.get(variables.pop(EFFORT))
            budget = effort if budget is None else budget
        request = Request(
            id=id,
            created=int(time.time()),
            model=model,
            prompts=asked.prompts,
            num_choices=num_choices,
            seed=secrets.randbits(53) if body.seed is None else body.seed,
            max_tokens=asked.max_tokens,
            plan=plan,
            stops=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
            keep_stop=asked.keep_stop,
            may_reason=asked.may_reason,
            strictness=strictness,
            expected=expected,
            session=options.session,
            owner=owner,
            instructions=asked.instructions,
            tools=asked.tools,
            variables=json.dumps(variables) if variables else "",
            thinking_token_budget=budget,
            answer=asked.answer.model_dump_json(),
            is_kept=asked.is_kept,
            default_max_tokens=asked.default_max_tokens,
        )
        check(request, strategy, served)
        return request, served

    def _plan(self, asked: ClientRequest, model: str, alias: str, served: Served) -> Generation:
        """What the request and the defaults say. Raises: InvalidRequest."""
        body, options, defaults = (
            asked.body,
            asked.body.semspec,
            served.defaults(self.settings.defaults),
        )
        if alias and options.strategy not in (None, alias):
            raise InvalidRequest(
                f"the model {model!r} already names another strategy", "semspec.strategy"
            )
        penalties = _penalties(body)
        one_writes = bool(asked.grammar) or not penalties.is_neutral
        name = (
            alias or options.strategy or ("target" if one_writes else served.default_name(defaults))
        )
        if name not in self.readiness.table:
            raise InvalidField(f"it should be one of {', '.join(self.readiness.table)}", "strategy")
        return Generation(
            context=Context(()),
            sampling=SamplingParams(
                temperature=defaults.temperature if body.temperature is None else body.temperature,
                top_p=defaults.top_p if body.top_p is None else body.top_p,
                top_k=max(0, body.top_k or 0),
                min_p=body.min_p or 0.0,
            ),
            penalties=penalties,
            strategy=name,
            options=defaults.options(name, options),
            segmentation=Segmentation(options.segmentation or defaults.segmentation),
            show_drafts=bool(options.trace and body.stream),
            grammar=asked.grammar,
            min_tokens=_NEVER if body.ignore_eos else body.min_tokens or 0,
        )

    def _num_choices(self, asked: ClientRequest) -> int:
        """Of all prompts together. Raises: InvalidRequest."""
        body, limit = asked.body, self.settings.max_n
        num_choices, num_prompts = body.n or 1, len(asked.prompts)
        if body.stream_options is not None and not body.stream:
            raise InvalidRequest(
                "stream_options is only allowed when stream is true", "stream_options"
            )
        if num_choices > limit:
            raise InvalidRequest(f"n is {num_choices}, but at most {limit} choices are served", "n")
        if num_prompts * num_choices > limit:
            message = (
                f"{num_prompts} prompts of n {num_choices} are over the limit of {limit} choices"
            )
            raise InvalidRequest(f"{message}; send fewer prompts at once", "prompt")
        if body.semspec.session is not None and not isinstance(asked.prompts[0], tuple):
            raise InvalidRequest(
                "sessions store the turns of a chat; use /v1/chat/completions", "semspec.session"
            )
        if num_choices > 1 and body.semspec.session is not None:
            raise InvalidRequest("a session has one next turn; leave out n or the session", "n")
        return num_prompts * num_choices


def new_id(api: Api) -> str:
    return f"{_PREFIXES[api]}-{secrets.token_hex(16)}"


def _penalties(body: GenerationRequest) -> Penalties:
    biases = ((int(token), bias) for token, bias in (body.logit_bias or {}).items())
    return Penalties(
        body.presence_penalty or 0.0,
        body.frequency_penalty or 0.0,
        1.0 if body.repetition_penalty is None else body.repetition_penalty,
        tuple(sorted(biases)),
    )
