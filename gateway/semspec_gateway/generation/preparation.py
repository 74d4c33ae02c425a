"""Prepares a request: compiles its grammar, tokenizes its prompts and sets its budget."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from semspec.decoding import Prompts, Target, render_prompts
from semspec.errors import (
    ContextTooLong,
    DeadlineExceeded,
    InternalError,
    InvalidField,
    InvalidRequest,
    SemspecError,
)
from semspec.grammars.compiler import Compiler
from semspec.types import (
    GRAMMAR,
    SURPRISAL_FEATURES,
    Context,
    Conversation,
    Message,
    Piece,
    Prompt,
    Segment,
    SegmentEnd,
    Writer,
)
from semspec_gateway.generation.admission import Admission, Limits
from semspec_gateway.generation.choice import Choice
from semspec_gateway.generation.grammar import check_grammar
from semspec_gateway.generation.request import (
    GenerationRequest,
    RequestPrompt,
)
from semspec_gateway.generation.target_faults import broken_target
from semspec_gateway.metrics import Metrics
from semspec_gateway.readiness import Readiness
from semspec_gateway.served import Served
from semspec_gateway.settings import GatewaySettings
from semspec_gateway.store.leases import turn_bytes

DEFAULT_SHARE = 4
"""The default budget is the window divided by this: 32,768 of 131,072 tokens, which R1's authors recommend."""
LEAST_DEADLINE_S = 600.0
TOKEN_DEADLINE_S = 0.1
"""Seconds allowed for a token of the budget."""
ENCODE_DEADLINE_S = 10.0
"""Longest that tokenizing a prompt may take."""

NUM_PREPARED, NUM_PREPARED_PER_OWNER = 8, 2
"""Requests whose texts are tokenized and whose grammars are compiled at once, in all and of one owner."""

JSON_BEFORE, JSON_TEXT = (
    'Objects in JSON: {"name": "Ann", "age": 31}\n',
    '{"name": "Bob", "age": 47}',
)
JSON_MARGIN = 3.0
"""Nats. A target that finds the tokens of JSON less likely than tokens drawn at random, by more than this in the mean,
does not write it: held to it, it rarely ends a text or a number."""

T = TypeVar("T")


class Preparation:
    """Prepares few requests at once, fairly between owners, since a text or a grammar may take seconds."""

    def __init__(self, readiness: Readiness, metrics: Metrics, settings: GatewaySettings) -> None:
        self._readiness = readiness
        self._metrics = metrics
        self._settings = settings
        max_queued = settings.max_concurrent + settings.max_queued
        limits = Limits(NUM_PREPARED, NUM_PREPARED_PER_OWNER, max_queued, settings.queue_timeout_s)
        self._admission = Admission(limits, None)
        self._compiler = Compiler()
        self._writes_json: dict[str, bool] = {}
        """By the target's fingerprint."""

    def admitted(self, owner: str) -> AbstractAsyncContextManager[None]:
        """Acquire a slot, waiting if needed. Raises: Overloaded."""
        return self._admission.admitted(owner, 1)

    def close(self) -> None:
        self._compiler.close()

    async def choices(
        self, request: GenerationRequest, turns: Sequence[Message], served: Served
    ) -> list[Choice]:
        """All choices of a request, whose session has these `turns`.

        Raises: InvalidRequest, ContextTooLong, Overloaded, DeadlineExceeded, and what the target raises.
        """
        async with self.admitted(request.owner):
            if request.grammar:
                await check_grammar(request.grammar, self._compiler, request.owner)
            choices = list[Choice]()
            for prompt in request.prompts:
                prompts = await self._prompts(request, prompt, turns, served)
                max_tokens = budget(request, prompts, served, self._settings.defaults.max_tokens)
                self._metrics.prompt_tokens.inc(len(prompts.target.token_ids))
                choices += [
                    Choice(request, index, prompts, max_tokens, served, len(turns))
                    for index in range(len(choices), len(choices) + request.num_choices_per_prompt)
                ]
            if ": %json" in request.grammar:
                await self._check_json(served)
            return choices

    async def _check_json(self, served: Served) -> None:
        """Check that the target can write JSON. Raises: InvalidRequest."""
        if (target := served.target).fingerprint not in self._writes_json:
            mean = await self.tokenized(
                lambda: _mean_log_probability_of_json(served.pinned.target), GRAMMAR
            )
            self._writes_json[target.fingerprint] = (
                mean > -math.log(target.num_token_ids or 1 << 20) - JSON_MARGIN
            )
        if not self._writes_json[target.fingerprint]:
            reason = "finds JSON less likely than tokens drawn at random, and would seldom end it"
            raise InvalidField(
                f"{target.model} {reason}",
                GRAMMAR,
                remedy="leave it out, or serve another target",
            )

    async def _prompts(
        self,
        request: GenerationRequest,
        request_prompt: RequestPrompt,
        turns: Sequence[Message],
        served: Served,
    ) -> Prompts:
        """Encode the prompt for each model of the strategy."""
        prompt: Prompt = request_prompt
        if isinstance(request_prompt, tuple):
            system = (Message("system", request.instructions),) if request.instructions else ()
            messages = (*system, *turns, *request_prompt)
            prompt = Conversation(messages, request.tools, request.variables)
        backends = served.pinned
        encoded = asyncio.ensure_future(
            self.tokenized(lambda: backends.target.encode(prompt), "prompt")
        )
        if Writer.DRAFT in request.strategy.writers:
            return await self._with_draft(request, prompt, encoded, served)
        return Prompts(await encoded)

    async def _with_draft(
        self,
        request: GenerationRequest,
        prompt: Prompt,
        encoded: "asyncio.Future[Piece]",
        served: Served,
    ) -> Prompts:
        """Encode the prompt for both models. Raises: what `encoded` raises; ContextTooLong for the draft's window."""
        drafter, deadline_s = served.pinned.drafter, ENCODE_DEADLINE_S
        try:
            return await render_prompts(
                prompt, encoded, drafter, served.draft, served.target, deadline_s
            )
        except ContextTooLong as error:
            is_of_draft = encoded.done() and not encoded.cancelled() and encoded.exception() is None
            remedies = (error.remedy, _larger_window(served) if is_of_draft else "")
            raise ContextTooLong(
                error.message,
                error.parameter or "prompt",
                remedy="; ".join(filter(None, remedies)),
            ) from error

    async def tokenized(self, call: Callable[[], Awaitable[T]], parameter: str) -> T:
        """Return the target's answer about a text, which errors name as `parameter`.

        Raises: InvalidRequest, DeadlineExceeded, and what the target raises.
        """
        try:
            async with asyncio.timeout(ENCODE_DEADLINE_S):
                with broken_target(InternalError):
                    return await call()
        except TimeoutError:
            self._readiness.suspect()
            raise DeadlineExceeded(
                "the target took too long to tokenize the prompt", remedy="retry"
            ) from None
        except InvalidRequest as error:
            is_of_template = error.parameter in ("tools", "chat_template_kwargs")
            raise error.about(error.parameter if is_of_template else parameter) from error
        except SemspecError:
            self._readiness.suspect()
            raise


async def _mean_log_probability_of_json(target: Target) -> float:
    before = await target.encode(JSON_BEFORE)
    segment = Segment(JSON_TEXT, (), "", Writer.TARGET, SegmentEnd.BOUNDARY)
    [score] = await target.score(Context((before,)), [segment])
    return score.surprisal[SURPRISAL_FEATURES.index("mean_log_probability")]


def check_session_size(
    request: GenerationRequest, turns: Sequence[Message], max_bytes: int
) -> None:
    """Check that the session has room for the request's messages. Raises: InvalidRequest."""
    num_bytes = sum(map(turn_bytes, (*turns, *request.messages)))
    if request.session is not None and num_bytes > max_bytes:
        message = f"session {request.session} would exceed {max_bytes} bytes"
        raise InvalidRequest(message, "session", remedy="start a new one")


def deadline_s(choices: Sequence[Choice], settings: GatewaySettings) -> float:
    """Longest that the choices may take together, in seconds."""
    max_tokens = max(choice.generation.max_tokens for choice in choices)
    return settings.generation_deadline_s or max(LEAST_DEADLINE_S, max_tokens * TOKEN_DEADLINE_S)


def _larger_window(served: Served) -> str:
    """The remedy for a prompt that may fit the target's window alone; empty if that is not larger than the draft's."""
    window = served.target.max_context_tokens
    return (
        f"or choose 'target', whose window has {window}"
        if window > served.draft.max_context_tokens
        else ""
    )


def budget(
    request: GenerationRequest, prompts: Prompts, served: Served, operator_default: int | None
) -> int:
    """Return the maximum number of output tokens. Raises: ContextTooLong."""
    windows = [(served.target.max_context_tokens, len(prompts.target.token_ids), "the window")]
    if Writer.DRAFT in request.strategy.writers:
        draft_ids = prompts.draft.token_ids if prompts.draft else ()
        num_draft_tokens = len(draft_ids or prompts.target.token_ids)
        windows.append((served.draft.max_context_tokens, num_draft_tokens, "the draft's window"))
    window, num_prompt_tokens, name = min(windows, key=lambda window: window[0] - window[1])
    num_free = window - num_prompt_tokens
    if num_free < (request.max_tokens or 1):
        requested = f" and the {request.max_tokens} requested" if request.max_tokens else ""
        message = f"the {num_prompt_tokens} tokens of the prompt{requested} exceed {name} of {window} tokens"
        remedy = "" if len(windows) == 1 else _larger_window(served)
        raise ContextTooLong(message, "prompt", remedy=remedy)
    default = operator_default or min(
        max(1, window // DEFAULT_SHARE), request.default_max_tokens or window
    )
    return request.max_tokens or min(default, num_free)
