"""What comes before a generation: its grammar is compiled and its prompts are tokenized."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from typing import TypeVar

from semspec.decoding import Backends, Prompts, prompts_of
from semspec.errors import ContextTooLong, DeadlineExceeded, InternalError, InvalidRequest, SemspecError
from semspec.gateway.generation.admission import Admission, Limits
from semspec.gateway.generation.checks import budget
from semspec.gateway.generation.choice import broken_target
from semspec.gateway.generation.collection import Collection
from semspec.gateway.generation.grammar import check_grammar
from semspec.gateway.generation.request import ChoiceRequest, Request, RequestPrompt
from semspec.gateway.metrics import Metrics
from semspec.gateway.readiness import Readiness
from semspec.gateway.served import Served
from semspec.gateway.settings import GatewaySettings
from semspec.grammars.compiler import Compiler
from semspec.types import Conversation, Message, Piece, Prompt, Writer

ENCODE_DEADLINE_S = 10.0
"""Longest that tokenizing a prompt may take."""

T = TypeVar("T")


class Preparation:
    """Prepares few requests at once, fairly between owners, since a text or a grammar may take seconds."""

    def __init__(
        self,
        backends: Backends,
        readiness: Readiness,
        metrics: Metrics,
        settings: GatewaySettings,
        collection: Collection | None = None,
    ) -> None:
        self._backends = backends
        self._readiness = readiness
        self._metrics = metrics
        self._settings = settings
        self._collection = collection
        self._admission = Admission(Limits.of_preparation(settings), None)
        self._compiler = Compiler()

    def admitted(self, owner: str) -> AbstractAsyncContextManager[None]:
        """Acquire a slot, waiting if needed. Raises: Overloaded."""
        return self._admission.admitted(owner, 1)

    def close(self) -> None:
        self._compiler.close()

    async def choices(self, request: Request, turns: Sequence[Message], served: Served) -> list[ChoiceRequest]:
        """All choices of a request, whose session has these `turns`.

        Raises: InvalidRequest, ContextTooLong, Overloaded, DeadlineExceeded, and what the target raises.
        """
        async with self.admitted(request.owner):
            if request.plan.grammar:
                await check_grammar(request.plan.grammar, self._compiler)
            choices = list[ChoiceRequest]()
            for prompt in request.prompts:
                choices += await self._choices(request, prompt, turns, served, len(choices))
            return choices

    async def _choices(
        self, request: Request, prompt: RequestPrompt, turns: Sequence[Message], served: Served, first: int
    ) -> list[ChoiceRequest]:
        """All choices of one of the request's prompts; `first` is the index of the first of them."""
        prompts = await self._prompts(request, prompt, turns, served)
        max_tokens = budget(request, prompts, served, self._settings.defaults.max_tokens)
        self._metrics.prompt_tokens.inc(len(prompts.target.token_ids))
        indices = range(first, first + request.num_choices_per_prompt)
        return [
            ChoiceRequest(index, request, request.generation(index, prompts, max_tokens), served, len(turns))
            for index in indices
        ]

    async def _prompts(
        self, request: Request, given: RequestPrompt, turns: Sequence[Message], served: Served
    ) -> Prompts:
        """The prompt as each model of the strategy reads it."""
        first = (Message("system", request.instructions),) if request.instructions else ()
        prompt: Prompt = (*first, *turns, *given) if isinstance(given, tuple) else given
        if (request.tools or request.variables) and isinstance(prompt, tuple):
            prompt = Conversation(prompt, request.tools, request.variables)
        encoded = asyncio.ensure_future(self.tokenized(lambda: self._backends.target.encode(prompt), "prompt"))
        if Writer.DRAFT in served.strategy(request.plan).writers:
            return await self._with_draft(request, prompt, encoded, served)
        if self._collection and self._collection.wants(request):
            with suppress(ContextTooLong):  # the draft's prompt is for the collection only
                return replace(await self._with_draft(request, prompt, encoded, served), fallback=None)
        return Prompts(await encoded)

    async def _with_draft(
        self, request: Request, prompt: Prompt, encoded: "asyncio.Future[Piece]", served: Served
    ) -> Prompts:
        """The prompt as both models read it. Raises: what `encoded` does; ContextTooLong by the draft's window."""
        drafter, deadline_s = served.pinned(self._backends).drafter, ENCODE_DEADLINE_S
        try:
            return await prompts_of(prompt, encoded, drafter, served.draft, served.target, deadline_s)
        except ContextTooLong as error:
            raise ContextTooLong(error.message, error.parameter or "prompt") from error

    async def tokenized(self, call: Callable[[], Awaitable[T]], parameter: str) -> T:
        """The target's answer about a text, which errors name as `parameter`.

        Raises: InvalidRequest, DeadlineExceeded, and what the target raises.
        """
        try:
            async with asyncio.timeout(ENCODE_DEADLINE_S):
                with broken_target(InternalError):
                    return await call()
        except TimeoutError:
            self._readiness.suspect()
            raise DeadlineExceeded("the target took too long to tokenize the prompt; retry") from None
        except InvalidRequest as error:
            is_of_template = error.parameter in ("tools", "chat_template_kwargs")
            raise type(error)(error.message, error.parameter if is_of_template else parameter) from error
        except SemspecError:
            self._readiness.suspect()
            raise
