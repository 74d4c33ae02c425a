"""Resolves requests: fills in defaults, chooses the strategy, and names the API's fields in errors."""

import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from semspec.decoding import Strategy
from semspec.errors import InvalidField, InvalidRequest, NotFound, SemspecError
from semspec.types import Acceptance, JsonObject, Segmentation
from semspec_gateway.api.shared.requests import GenerationBody, TextRequest
from semspec_gateway.generation.audit import Audit
from semspec_gateway.generation.request import AnswerOptions, ClientRequest, GenerationRequest
from semspec_gateway.generation.support import (
    answer_strategy,
    check,
    check_strategy,
    setting_at,
    supported_logprobs,
)
from semspec_gateway.options import StrategyOptions
from semspec_gateway.readiness import Readiness
from semspec_gateway.served import Served
from semspec_gateway.settings import GatewaySettings

PLACEHOLDERS = ("tgi", "dummy")
"""Names that Text Generation Inference's clients send for "the model that is served"."""

EFFORT = "reasoning_effort"
"""The variable of chat templates by which OpenAI's field of this name is served."""
EFFORT_PARAMETER = f"chat_template_kwargs.{EFFORT}"

EFFORT_BUDGETS = {"none": 0, "minimal": 128, "low": 1024, "medium": 2048, "high": 4096}
"""LiteLLM's tokens of reasoning, for models whose template does not read an effort; other efforts have no limit."""

OPTIONS = (
    *("strategy", "rewrite", "probes", "num_speculative_tokens", "acceptance.threshold"),
    *("segmentation", "strictness", "exact_answer", "session"),
)
"""Options in `semspec` that errors of lower layers name."""
_PREFIXES: dict[str, str] = {
    "chat": "chatcmpl",
    "completions": "cmpl",
    "tgi": "tgi",
    "responses": "resp",
}

A = TypeVar("A", bound=AnswerOptions)


def answer_options(
    kind: type[A], api: str, body: GenerationBody, fields: Mapping[str, str], **specific: Any
) -> A:
    """Return the options of an API's answers. `fields`: see `naming`; `specific`: options that only this API has."""
    semspec = {name: f"semspec.{name}" for name in OPTIONS}
    if isinstance(body, TextRequest) and ":" in (body.model or ""):
        semspec["strategy"] = "model"
    return kind(api=api, fields={**semspec, **fields}, trace=bool(body.semspec.trace), **specific)


@contextmanager
def naming(fields: Mapping[str, str]) -> Iterator[None]:
    """Name the parameters of errors by the API's own `fields`."""
    try:
        yield
    except SemspecError as error:
        if (field := fields.get(error.parameter or "")) is None:
            raise
        raise error.about(field) from error


def variables_of(variables: JsonObject | None, effort: str | None, field: str) -> JsonObject:
    """The chat template's variables; `field` sets the effort. Raises: InvalidRequest when the effort is given twice."""
    if effort is None:
        return variables or {}
    if variables and EFFORT in variables:
        raise InvalidRequest(
            f"{field} sets the variable {EFFORT!r} of chat_template_kwargs",
            field,
            remedy="give one of them",
        )
    return {**(variables or {}), EFFORT: effort}


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
            f"the model {name!r} does not exist",
            "model",
            remedy="GET /v1/models lists those that do",
        )
    return name, alias


@dataclass(frozen=True, slots=True)
class Resolver:
    """Makes the request that is served: it chooses the strategy, and fills in what the client leaves unset."""

    readiness: Readiness
    settings: GatewaySettings
    audit: Audit | None

    def resolve(
        self, body: GenerationBody, client_request: ClientRequest, id: str, owner: str
    ) -> tuple[GenerationRequest, Served]:
        """Return the request with every default filled in, and the pair that serves it.

        Raises: InvalidRequest, NotFound, Unavailable, Mismatch.
        """
        options = body.semspec
        self._check_choices(client_request, options.session)
        model_name = body.model if isinstance(body, TextRequest) else None
        model, alias = check_model(model_name, self.settings, self.readiness)
        served = self.readiness.require()
        if alias and options.strategy not in (None, alias):
            raise InvalidRequest(
                f"the model {model!r} already names another strategy", "semspec.strategy"
            )
        is_shaped = bool(client_request.grammar) or not client_request.penalties.is_neutral
        default = "target" if is_shaped else served.default_name
        strategy = self._strategy(alias or options.strategy or default, options, served)
        strictness, expected = options.strictness, None
        if strictness is None and self.audit:
            strictness = self.audit.tightened_strictness(strategy, served)
        if strictness is not None:
            setting = setting_at(strictness, strategy, served)
            expected, acceptance = setting.expected, Acceptance("threshold", setting.threshold)
            changed = replace(strategy.options, acceptance=acceptance)
            strategy = served.strategies[strategy.name](changed)
        num_logprobs = supported_logprobs(
            client_request.num_logprobs, client_request.are_logprobs_optional, strategy, served
        )
        answer = None
        if options.exact_answer:
            needs_generate = is_shaped or client_request.min_tokens > 0 or num_logprobs is not None
            answer = answer_strategy(strategy, served, needs_generate)
        variables, budget = dict(client_request.variables), client_request.thinking_token_budget
        if (
            EFFORT_PARAMETER in client_request.answer.fields
            and EFFORT not in served.target.template_variables
        ):
            effort = EFFORT_BUDGETS.get(variables.pop(EFFORT))
            budget = effort if budget is None else budget
        resolved = {
            "num_logprobs": num_logprobs,
            "variables": variables,
            "thinking_token_budget": budget,
        }
        request = GenerationRequest(
            **{field.name: getattr(client_request, field.name) for field in fields(ClientRequest)}
            | resolved,
            id=id,
            created=int(time.time()),
            model=model,
            sampling=body.sampling(served.defaults),
            strategy=strategy,
            answer_strategy=answer,
            segmentation=Segmentation(options.segmentation or served.defaults.segmentation),
            show_drafts=bool(options.trace and body.stream),
            strictness=strictness,
            expected=expected,
            session=options.session,
            owner=owner,
        )
        check(request, served)
        return request, served

    def _strategy(self, name: str, options: StrategyOptions, served: Served) -> Strategy:
        """Return the strategy `name` with the request's options and the defaults. Raises: InvalidRequest."""
        if name not in served.strategies:
            raise InvalidField(f"it should be one of {', '.join(served.strategies)}", "strategy")
        strategy = served.strategies[name](served.defaults.options(name, options))
        check_strategy(strategy, served)
        return strategy

    def _check_choices(self, client_request: ClientRequest, session: str | None) -> None:
        """Check the number of choices, and what a session allows. Raises: InvalidRequest."""
        limit, num_prompts = self.settings.max_choices, len(client_request.prompts)
        num_choices = client_request.num_choices_per_prompt
        if num_choices > limit:
            raise InvalidRequest(f"n is {num_choices}, but at most {limit} choices are served", "n")
        if client_request.num_choices > limit:
            message = (
                f"{num_prompts} prompts with n {num_choices} exceed the limit of {limit} choices"
            )
            raise InvalidRequest(message, "prompt", remedy="send fewer prompts at once")
        if session is not None and not isinstance(client_request.prompts[0], tuple):
            raise InvalidRequest(
                "sessions are for chats",
                "semspec.session",
                remedy="use /v1/chat/completions",
            )
        if num_choices > 1 and session is not None:
            raise InvalidRequest(
                "a session takes one answer, not several", "n", remedy="leave out n or the session"
            )


def new_id(api: str) -> str:
    return f"{_PREFIXES[api]}-{secrets.token_hex(16)}"
