"""Begins a request's generations or attaches to existing ones, and runs them concurrently."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Self

from semspec.decoding import STRATEGIES, Backends, Prompts, prompts_of
from semspec.errors import (
    Cancelled,
    ContextTooLong,
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    NotFound,
    SemspecError,
)
from semspec.gateway.generation.admission import Admission
from semspec.gateway.generation.attach import Attacher, SharedSlots
from semspec.gateway.generation.audit import Audit
from semspec.gateway.generation.choice import ChoiceRunner, Emit, broken_target
from semspec.gateway.generation.output import ChoiceEvent, ChoiceOutput
from semspec.gateway.generation.request import ChoiceRequest, Request, RequestPrompt, stored_choice, stored_fields
from semspec.gateway.generation.strictness import at_strictness
from semspec.gateway.metrics import Metrics
from semspec.gateway.readiness import Readiness
from semspec.gateway.served import Served
from semspec.gateway.settings import GatewaySettings
from semspec.gateway.store.journal import Journal, cancelled
from semspec.gateway.store.session_lease import SessionLease, Sessions
from semspec.gateway.store.store import FIRST_FENCE, Store
from semspec.types import Conversation, Message, Piece, Prompt, Writer

Work = Callable[[Emit], Coroutine[None, None, None]]
"""Generates one choice, and emits its events."""


class Run:
    """An async context manager that generates all choices; leaving it cancels their calls to the models."""

    def __init__(
        self,
        request: Request,
        served: Served,
        outputs: Sequence[ChoiceOutput],
        works: Sequence[Work],
        was_cancelled: asyncio.Event,
        deadline_s: float,
    ) -> None:
        """`was_cancelled` is set when the request is cancelled, here or through another gateway."""
        self.request = request
        self.served = served
        self.outputs = outputs
        self._works = works
        self._was_cancelled = was_cancelled
        self._deadline_s = deadline_s
        self._queue: asyncio.Queue[tuple[int, ChoiceEvent] | Exception | None] = asyncio.Queue()
        self._num_running = len(works)
        self._tasks: list[asyncio.Task[None]] = []

    async def next(self) -> tuple[int, ChoiceEvent] | None:
        """The next event of any choice, with the choice's index; None after the last.

        Raises: the first error of a choice; Cancelled, DeadlineExceeded.
        """
        item = await self._queue.get()
        if isinstance(item, Exception):
            raise item
        return item

    async def __aenter__(self) -> Self:
        self._timer = asyncio.get_running_loop().call_later(self._deadline_s, self._time_out)
        self._tasks = [asyncio.create_task(self._generate(index, work)) for index, work in enumerate(self._works)]
        self._tasks.append(asyncio.create_task(self._watch()))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._timer.cancel()
        await cancelled(*self._tasks)

    async def _generate(self, index: int, work: Work) -> None:
        try:
            await work(lambda event: self._queue.put_nowait((index, event)))
        except Exception as error:
            self._queue.put_nowait(error)
            return
        self._num_running -= 1
        if not self._num_running:
            self._queue.put_nowait(None)

    def _time_out(self) -> None:
        message = "the generation took longer than this server allows; ask for fewer tokens"
        self._queue.put_nowait(DeadlineExceeded(message))

    async def _watch(self) -> None:
        await self._was_cancelled.wait()
        self._queue.put_nowait(Cancelled("the generation was cancelled"))


class Generations:
    """All generations of this gateway."""

    def __init__(
        self,
        backends: Backends,
        runner: ChoiceRunner,
        admission: Admission,
        readiness: Readiness,
        attacher: Attacher,
        store: Store,
        sessions: Sessions,
        metrics: Metrics,
        settings: GatewaySettings,
        audit: Audit | None = None,
    ) -> None:
        self._audit = audit
        self._backends = backends
        self._runner = runner
        self._admission = admission
        self._readiness = readiness
        self._attacher = attacher
        self._store = store
        self._sessions = sessions
        self._metrics = metrics
        self._settings = settings

    @asynccontextmanager
    async def begun(self, request: Request) -> AsyncIterator[Run]:
        """Acquire the slots and the session of a request, then generate.

        Raises: every error with which a request with a valid schema may be refused.
        """
        settings, served = self._settings, self._readiness.require()
        request = _checked(self._audit.tightened(request) if self._audit else request, served)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._admission.admitted(request.owner, request.num_choices))
            lease = None
            if request.session is not None:
                writer = f"{request.id} {FIRST_FENCE}"
                lease = await self._sessions.claimed(request.session, request.owner, writer, stack)
            turns = lease.turns if lease else ()
            _check_session_size(request, turns, settings.max_session_bytes)
            request = replace(request, num_turns=len(turns))
            choices = list[ChoiceRequest]()
            for prompt in request.all_prompts:
                choices += await self._choices(request, prompt, turns, served, len(choices))
            was_cancelled, outputs = asyncio.Event(), [choice.output() for choice in choices]
            works = [
                partial(self._begin, choice, output, Journal(self._store, choice.id, was_cancelled), lease)
                for choice, output in zip(choices, outputs, strict=True)
            ]
            async with Run(request, served, outputs, works, was_cancelled, settings.generation_deadline_s) as run:
                yield run

    @asynccontextmanager
    async def attached(self, id: str, seen: Sequence[int] = (), trace: bool | None = None) -> AsyncIterator[Run]:
        """Attach to a request's generations, by the id of one of them; `seen` counts the client's segments per choice.

        The response has the request's own format; `trace`, if not None, selects whether the stream has segment records,
        and includes the usage. Raises: NotFound, Conflict, Unavailable, Mismatch.
        """
        served = self._readiness.known()
        first = stored_choice(id, await self._store.generation(id), served)
        choices = [await self._stored_choice(first, index) for index in range(first.request.num_choices)]
        was_cancelled, outputs = asyncio.Event(), [choice.output() for choice in choices]
        async with AsyncExitStack() as stack:
            slots = SharedSlots(self._admission, first.request, stack)
            works = [
                partial(self._attacher.run, choice, output, num_seen, was_cancelled, slots)
                for choice, output, num_seen in zip(choices, outputs, [*seen, *[0] * len(choices)], strict=False)
            ]
            request = first.request if trace is None else replace(first.request, trace=trace, include_usage=True)
            deadline_s = self._settings.generation_deadline_s
            async with Run(request, served, outputs, works, was_cancelled, deadline_s) as run:
                yield run

    async def _begin(
        self, choice: ChoiceRequest, output: ChoiceOutput, journal: Journal, lease: SessionLease | None, emit: Emit
    ) -> None:
        await journal.begin(stored_fields(choice))
        await self._runner.run(choice, output, journal, lease, emit)

    async def _choices(
        self, request: Request, prompt: RequestPrompt, turns: Sequence[Message], served: Served, first: int
    ) -> list[ChoiceRequest]:
        """All choices of one of the request's prompts; `first` is the index of the first of them."""
        prompts = await self._prompts(request, prompt, turns, served)
        budget = _budget(request, prompts, served, self._settings.default_max_tokens)
        self._metrics.prompt(len(prompts.target.token_ids))
        indices = range(first, first + request.num_choices_per_prompt)
        return [ChoiceRequest.of(request, index, prompts, budget, served) for index in indices]

    async def _stored_choice(self, first: ChoiceRequest, index: int) -> ChoiceRequest:
        """One choice of a request; it is begun now if the request's gateway stopped before beginning it."""
        request, id = first.request, first.request.choice_id(index)
        try:
            return stored_choice(id, await self._store.generation(id), first.served)
        except NotFound:
            position, offset = divmod(index, request.num_choices_per_prompt)
            if position == first.index // request.num_choices_per_prompt:
                choice = ChoiceRequest.of(request, index, first.prompts, first.generation.max_tokens, first.served)
            else:
                prompt = request.all_prompts[position]
                choice = (await self._choices(request, prompt, (), first.served, index - offset))[offset]
            await Journal(self._store, choice.id, asyncio.Event()).begin(stored_fields(choice))
            return choice

    async def _prompts(
        self, request: Request, given: RequestPrompt, turns: Sequence[Message], served: Served
    ) -> Prompts:
        """The prompt as each model of the strategy reads it."""
        first = (Message("system", request.instructions),) if request.instructions else ()
        prompt: Prompt = (*first, *turns, *given) if isinstance(given, tuple) else given
        if request.tools and isinstance(prompt, tuple):
            prompt = Conversation(prompt, request.tools)
        target = await self._encode(request, prompt)
        if Writer.DRAFT not in STRATEGIES[request.plan.strategy].writers:
            return Prompts(target)
        drafter = served.pinned(self._backends).drafter
        try:
            async with asyncio.timeout(self._settings.encode_deadline_s):
                return await prompts_of(prompt, target, drafter, served.draft, served.target)
        except TimeoutError:
            return Prompts(target, fallback="the draft took too long")
        except ContextTooLong as error:
            raise ContextTooLong(error.message, error.parameter or request.prompt_field) from error

    async def _encode(self, request: Request, prompt: Prompt) -> Piece:
        try:
            async with asyncio.timeout(self._settings.encode_deadline_s):
                with broken_target(InternalError):
                    return await self._backends.target.encode(prompt)
        except TimeoutError:
            self._readiness.suspect()
            raise DeadlineExceeded("the target took too long to tokenize the prompt; retry") from None
        except InvalidRequest as error:
            field = error.parameter if error.parameter == "tools" else request.prompt_field
            raise type(error)(error.message, field) from error
        except SemspecError:
            self._readiness.suspect()
            raise


def _checked(request: Request, served: Served) -> Request:
    """The request completed with what depends on the services. Raises: InvalidRequest if they do not support it."""
    strategy = request.plan.strategy
    if (unsupported_reason := served.unsupported_reason(strategy)) is not None:
        raise InvalidRequest(unsupported_reason, request.strategy_field)
    _check_segmentation(request, served)
    _check_grammar(request, served)
    if request.plan.sampling.min_p and not served.takes_min_p(strategy):
        raise InvalidRequest("min_p: a server writes for one of the models that may not know it; leave it out", "min_p")
    if request.plan.num_logprobs is not None and not served.tells_logprobs(strategy):
        request = _without_logprobs(request)
    if request.strictness is None:
        return request
    if STRATEGIES[strategy].needs_calibration and served.likelihood is not None:
        chosen = at_strictness(request.strictness, served.likelihood.curve)
        plan = replace(request.plan, likelihood_threshold=chosen.acceptance.threshold)
        return replace(request, plan=plan, expected=chosen.expected)
    if STRATEGIES[strategy].probes != "":
        message = f"strictness needs the pair's own probes, which the strategy {strategy!r} does not use"
        raise InvalidRequest(f"{message}; leave it out, or choose 'semantic'", "semspec.strictness")
    chosen = at_strictness(request.strictness, served.verifier.operating_points)
    return replace(request, plan=replace(request.plan, acceptance=chosen.acceptance), expected=chosen.expected)


def _without_logprobs(request: Request) -> Request:
    """Raises: InvalidRequest where the client requested them; TGI's responses otherwise omit them."""
    if request.api != "tgi" or request.plan.num_logprobs:
        field = "parameters.top_n_tokens" if request.api == "tgi" else "logprobs"
        message = f"{field}: the strategy {request.plan.strategy!r} has no logprobs"
        raise InvalidRequest(f"{message}; leave it out, or choose another strategy", field)
    return replace(request, plan=replace(request.plan, num_logprobs=None))


def _check_grammar(request: Request, served: Served) -> None:
    if not request.plan.grammar:
        return
    if not STRATEGIES[request.plan.strategy].takes_grammars:
        message = f"the strategy {request.plan.strategy!r} judges what is written, and cannot hold it to a format"
        raise InvalidRequest(f"{message}; leave it out, or choose 'target'", request.strategy_field)
    if not served.takes_grammars(request.plan.strategy):
        message = f"{request.format_field}: {served.target.model} cannot be held to a format"
        remedy = "it needs the engine 'auto', 'fast' or 'transformers', and a vocabulary that spells any text"
        raise InvalidRequest(f"{message}: {remedy}; leave it out", request.format_field)


def _check_segmentation(request: Request, served: Served) -> None:
    supported = served.segmentations(request.plan.strategy)
    if request.plan.segmentation not in supported:
        name, names = request.plan.segmentation.value, ", ".join(sorted(supported))
        message = f"the services do not support the segmentation {name!r} for this strategy, only: {names}"
        raise InvalidRequest(message, "semspec.segmentation")


def _check_session_size(request: Request, turns: Sequence[Message], max_bytes: int) -> None:
    num_bytes = sum(len((turn.content + turn.tool_calls).encode()) for turn in (*turns, *request.messages))
    if request.session is not None and num_bytes > max_bytes:
        message = f"session {request.session} would exceed {max_bytes} bytes; start a new one"
        raise InvalidRequest(message, "semspec.session")


def _budget(request: Request, prompts: Prompts, served: Served, default_max_tokens: int) -> int:
    """Maximum number of output tokens. Raises: ContextTooLong."""
    rooms = [(served.target.max_context_tokens, len(prompts.target.token_ids))]
    if Writer.DRAFT in STRATEGIES[request.plan.strategy].writers:
        own_ids = prompts.draft.token_ids if prompts.draft else ()
        rooms.append((served.draft.max_context_tokens, len(own_ids or prompts.target.token_ids)))
    window, num_prompt_tokens = min(rooms, key=lambda room: room[0] - room[1])
    num_free = window - num_prompt_tokens
    if num_free < (request.max_tokens or 1):
        requested = f" and the {request.max_tokens} requested" if request.max_tokens else ""
        message = f"the {num_prompt_tokens} tokens of the prompt{requested} exceed the window of {window} tokens"
        raise ContextTooLong(message, request.prompt_field)
    return request.max_tokens or min(default_max_tokens, num_free)
