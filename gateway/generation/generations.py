"""A request whose generations may start: everything that can be refused has been."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, replace

from gateway.generations import stored
from gateway.generations.attach import Attached, SharedSlots
from gateway.generations.call import Call
from gateway.generations.choice import Choice, ChoiceEvent, Order
from gateway.generations.served import BY_OWN_PROBES, Served
from gateway.generations.sessions import SessionLease, held_session
from gateway.generations.statistics import Summary
from gateway.generations.strictness import at_strictness
from gateway.parts import Parts
from gateway.storage.journal import Journal
from gateway.storage.store import FIRST_FENCE
from gateway.tasks import merged
from semspec.errors import ContextTooLong, DeadlineExceeded, InvalidRequest, NotFound, SemspecError
from semspec.types import Context, Message, Piece


@dataclass(frozen=True, slots=True)
class Run:
    """A request's generations, side by side."""

    call: Call
    served: Served
    summaries: Sequence[Summary]
    _sources: Sequence[AsyncGenerator[ChoiceEvent, None]]
    _cancelled: asyncio.Event
    _deadline_s: float

    def events(self) -> AsyncGenerator[tuple[int, ChoiceEvent], None]:
        """Events of all choices with the choice's index. Closing the generator cancels what the models do for it."""
        return merged(self._sources, self._deadline_s, self._cancelled)


@asynccontextmanager
async def new_run(call: Call, parts: Parts) -> AsyncIterator[Run]:
    """Hold the room and the session a request needs. Raises: all a request can be refused for beside its schema."""
    served = parts.readiness.require()
    call = _checked(call, served)
    async with AsyncExitStack() as held:
        await held.enter_async_context(parts.admission.admitted(call.owner, call.num_choices))
        lease = await held_session(call, FIRST_FENCE, parts, held)
        turns = lease.turns if lease else ()
        _check_session_size(call, turns, parts.settings.max_session_bytes)
        call = replace(call, num_turns=len(turns))
        prompt = await _encode(call, turns, parts)
        budget = _budget(call, prompt, served, parts.settings.default_max_tokens)
        parts.metrics.prompt(len(prompt.token_ids))
        orders = [Order.of(call, index, Context((prompt,)), budget, served) for index in range(call.num_choices)]
        cancelled, summaries = asyncio.Event(), [order.summary() for order in orders]
        pairs = zip(orders, summaries, strict=True)
        sources = [_begun(order, summary, cancelled, lease, parts) for order, summary in pairs]
        yield Run(call, served, summaries, sources, cancelled, parts.settings.generation_deadline_s)


@asynccontextmanager
async def attached_run(
    id: str, parts: Parts, seen: Sequence[int] = (), trace: bool | None = None
) -> AsyncIterator[Run]:
    """Go on with a request's generations, given the id of one of them and the segments `seen` of each choice.

    The answer is as the request asked for it; with `trace`, a stream with or without records, and with the usage.
    Raises: NotFound, Conflict, Unavailable, Mismatch.
    """
    served = parts.readiness.known()
    first = stored.order(await parts.store.generation(id), served)
    orders = [await _stored_choice(first, index, parts) for index in range(first.call.num_choices)]
    cancelled, summaries = asyncio.Event(), [order.summary() for order in orders]
    async with AsyncExitStack() as held:
        room = SharedSlots(first.call, parts, held)
        sources = [
            Attached(order, summary, cancelled, parts, room, num_seen).events()
            for order, summary, num_seen in zip(orders, summaries, [*seen, *[0] * len(orders)], strict=False)
        ]
        call = first.call if trace is None else replace(first.call, trace=trace, include_usage=True)
        yield Run(call, served, summaries, sources, cancelled, parts.settings.generation_deadline_s)


async def _stored_choice(first: Order, index: int, parts: Parts) -> Order:
    """One choice of a request; begun now, if its gateway did not come so far."""
    try:
        return stored.order(await parts.store.generation(first.call.choice_id(index)), first.served)
    except NotFound:
        generation = first.generation
        order = Order.of(first.call, index, generation.context, generation.max_tokens, first.served)
        await Journal(parts.store, order.id, asyncio.Event()).begin(stored.meta(order))
        return order


async def _begun(
    order: Order, summary: Summary, cancelled: asyncio.Event, lease: SessionLease | None, parts: Parts
) -> AsyncGenerator[ChoiceEvent, None]:
    journal = Journal(parts.store, order.id, cancelled)
    await journal.begin(stored.meta(order))
    async with aclosing(Choice(order, summary, journal, parts).events(lease)) as events:
        async for event in events:
            yield event


def _checked(call: Call, served: Served) -> Call:
    """The call with what only the services know filled in. Raises: InvalidRequest where they cannot do it."""
    strategy = call.plan.strategy
    if (unsupported_reason := served.unsupported_reason(strategy)) is not None:
        raise InvalidRequest(unsupported_reason, call.strategy_field)
    _check_segmentation(call, served)
    if call.plan.num_logprobs is not None and not served.tells_logprobs(strategy):
        call = _without_logprobs(call)
    if call.strictness is None:
        return call
    if strategy not in BY_OWN_PROBES:
        message = f"the strategy {strategy!r} does not go by the pair's own probes, whose curve strictness is on"
        raise InvalidRequest(f"{message}; leave it out, or choose 'semantic'", "semspec.strictness")
    chosen = at_strictness(call.strictness, served.verifier.operating_points)
    return replace(call, plan=replace(call.plan, acceptance=chosen.acceptance), expected=chosen.expected)


def _without_logprobs(call: Call) -> Call:
    """Raises: InvalidRequest where they were asked for; in TGI's words they only come along."""
    if call.api != "tgi" or call.plan.num_logprobs:
        field = "parameters.top_n_tokens" if call.api == "tgi" else "logprobs"
        message = f"{field}: the writers of {call.plan.strategy!r} do not know their logprobs"
        raise InvalidRequest(f"{message}; leave it out, or choose another strategy", field)
    return replace(call, plan=replace(call.plan, num_logprobs=None))


def _check_segmentation(call: Call, served: Served) -> None:
    known = served.segmentations(call.plan.strategy)
    if call.plan.segmentation not in known:
        names = ", ".join(sorted(known))
        message = f"the services know no segmentation {call.plan.segmentation.value!r} for this strategy, only: {names}"
        raise InvalidRequest(message, "semspec.segmentation")


def _check_session_size(call: Call, turns: Sequence[Message], max_bytes: int) -> None:
    num_bytes = sum(len(turn.content.encode()) for turn in (*turns, *_messages(call)))
    if call.session is not None and num_bytes > max_bytes:
        message = f"session {call.session} would exceed {max_bytes} bytes; start a new one"
        raise InvalidRequest(message, "semspec.session")


async def _encode(call: Call, turns: Sequence[Message], parts: Parts) -> Piece:
    prompt = call.prompt if isinstance(call.prompt, str) else (*turns, *call.prompt)
    try:
        async with asyncio.timeout(parts.settings.encode_deadline_s):
            return await parts.backends.target.encode(prompt)
    except TimeoutError:
        parts.readiness.suspect()
        raise DeadlineExceeded("the target took too long to tokenize the prompt; retry") from None
    except InvalidRequest as error:
        raise type(error)(error.message, error.parameter or call.prompt_field) from error
    except SemspecError:
        parts.readiness.suspect()
        raise


def _budget(call: Call, prompt: Piece, served: Served, default_max_tokens: int) -> int:
    """How many tokens may be written. Raises: ContextTooLong."""
    window, num_prompt_tokens = served.max_context_tokens(call.plan.strategy), len(prompt.token_ids)
    room = window - num_prompt_tokens
    if room < (call.max_tokens or 1):
        asked = f" and the {call.max_tokens} asked for" if call.max_tokens else ""
        message = f"the {num_prompt_tokens} tokens of the prompt{asked} exceed the window of {window} tokens"
        raise ContextTooLong(message, call.prompt_field)
    return call.max_tokens or min(default_max_tokens, room)


def _messages(call: Call) -> tuple[Message, ...]:
    return () if isinstance(call.prompt, str) else call.prompt
