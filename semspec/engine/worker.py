"""The thread that owns a model and runs the steps of all calls, so that they never block the event loop."""

import asyncio
import logging
import queue
import threading
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import suppress
from operator import attrgetter
from time import monotonic, perf_counter
from typing import Generic, TypeVar, cast

import torch

from semspec.engine.causal_lm import CausalLM
from semspec.engine.requests import Result
from semspec.engine.steps import Feed, Output, PrefixCache, Steps, equal_shares, run_step
from semspec.errors import InternalError, Overloaded, SemspecError, Unavailable
from semspec.observability import Durations, Metric

T = TypeVar("T")

AHEAD_S = 1.0
"""How long calls made ahead of need yield to others; after that, a caller may be waiting for them."""

REGROUP_S = 0.001
"""How long a step waits for callers that were answered together, who may call again together."""

MAX_CALLS = 256
"""Maximum number of running and waiting calls."""

STEP_TOKENS = 512
"""Maximum tokens of a step, so that other calls do not wait long while a prompt is read."""

_log = logging.getLogger(__name__)


class _Call(Generic[T]):
    """A running call, and the queue of its results for the event loop."""

    def __init__(self, steps: Steps[T], is_ahead: bool) -> None:
        self.steps = steps
        self._ahead_until = monotonic() + AHEAD_S if is_ahead else 0.0
        self.feed: Feed
        """The feed that the call waits for, once it has started."""
        self.is_cancelled = False
        self.results = Results[T]()
        self._loop = asyncio.get_running_loop()

    @property
    def is_ahead(self) -> bool:
        """Whether the call yields to others."""
        return self._ahead_until > monotonic()

    def advance(self, output: Output | None = None) -> bool:
        """Run the call to its next feed. Return False if it has ended instead."""
        try:
            while not self.is_cancelled:
                request = self.steps.send(output)
                if isinstance(request, Feed):
                    self.feed = request
                    return True
                self._send(request)
                output = None
            self.steps.close()
        except StopIteration:
            self._send(None)
        except Exception as error:
            self._send(error)
        return False

    def abort(self, error: BaseException | None) -> None:
        """End the call early, with an `error` unless it was cancelled."""
        self.steps.close()
        self._send(error)

    def _send(self, result: T | BaseException | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self.results.put, result)
        except RuntimeError:  # the loop is closed: there is no caller any more
            self.is_cancelled = True


class Results(Generic[T]):
    """A queue of a call's results. Not thread-safe.

    Waiting texts of one segment are joined, so that a caller who is slower than the model has fewer results to handle.
    """

    def __init__(self) -> None:
        self._waiting: deque[T | BaseException | None] = deque()
        self._is_filled = asyncio.Event()

    def put(self, result: T | BaseException | None) -> None:
        """Add a result, an error, or None for the end."""
        last = self._waiting[-1] if self._waiting else None
        joined = (
            last.joined(result) if isinstance(last, Result) and isinstance(result, Result) else None
        )
        if joined is None:
            self._waiting.append(result)
        else:
            self._waiting[-1] = cast(T, joined)
        self._is_filled.set()

    async def get(self) -> T | BaseException | None:
        """Wait for the first result, and take it."""
        while not self._waiting:
            self._is_filled.clear()
            await self._is_filled.wait()
        return self._waiting.popleft()


class Scheduler:
    """Plans steps. Calls share a budget of tokens equally; memory goes to the oldest calls first."""

    def __init__(
        self, cache: PrefixCache, max_kv_bytes: int, step_tokens: int = STEP_TOKENS
    ) -> None:
        """`max_kv_bytes`: keys and values of running calls and of cached prefixes together."""
        self.cache, self.max_kv_bytes, self._step_tokens = cache, max_kv_bytes, step_tokens
        self.num_preempted = 0  # calls whose keys and values were evicted

    def has_room(self, feeds: Sequence[Feed]) -> bool:
        """Whether another call may start next to those of `feeds`."""
        return not feeds or sum(feed.prefix.kv.nbytes for feed in feeds) < self.max_kv_bytes

    def plan(self, feeds: Sequence[Feed]) -> list[tuple[Feed, int]]:
        """Return the feeds of the next step, each with its number of tokens. `feeds`: of all calls, the oldest first.

        If memory is short, cached prefixes are dropped first, then the keys and values of the youngest calls, which are
        computed again when there is memory. The oldest call always runs, so that every call ends at some time.
        """
        shares = equal_shares([feed.num_left for feed in feeds], self._step_tokens)
        growths = [feed.prefix.kv.growth_bytes(feed.end) for feed in feeds]
        num_bytes = sum(feed.prefix.kv.nbytes for feed in feeds)
        if not any(growths):
            self._fits(num_bytes)  # a call may have begun with a copy of a cached prefix
            return list(zip(feeds, shares, strict=True))
        planned: list[tuple[Feed, int]] = []
        for index, (feed, share) in enumerate(zip(feeds, shares, strict=True)):
            # Computed again: it is larger now if the call was evicted for an older one.
            growth = feed.prefix.kv.growth_bytes(feed.end)
            if growth and not self._fits(num_bytes + growth):
                num_bytes -= self._evict(feeds[index + 1 :], num_bytes + growth)
                if index and not self._fits(num_bytes + growth):
                    continue
            num_bytes += growth
            planned.append((feed, share))
        return planned

    def _fits(self, num_bytes: int) -> bool:
        """Drop cached prefixes until running calls may take `num_bytes`. Return False if they still may not."""
        while num_bytes + self.cache.num_bytes > self.max_kv_bytes and self.cache.prefixes:
            self.cache.evict()
        return num_bytes + self.cache.num_bytes <= self.max_kv_bytes

    def _evict(self, younger: Sequence[Feed], num_bytes: int) -> int:
        """Drop keys and values of `younger` calls, youngest first, until `num_bytes` fit; return the freed bytes."""
        freed = 0
        for feed in reversed(younger):
            if self._fits(num_bytes - freed):
                break
            freed += feed.prefix.kv.nbytes
            self.num_preempted += feed.prefix.kv.num_tokens > 0
            feed.prefix.kv.clear()
        return freed


class Worker:
    """The thread that runs steps: it admits calls between two steps, and answers their feeds."""

    def __init__(self, name: str, lm: CausalLM, scheduler: Scheduler) -> None:
        self._lm, self.scheduler, self._cache = lm, scheduler, scheduler.cache
        self._arrivals: queue.SimpleQueue[_Call[object] | None] = queue.SimpleQueue()
        self._waiting: deque[_Call[object]] = deque()
        self._running: list[_Call[object]] = []
        self._num_calls = 0
        self._num_ended = 0
        """Number of calls that ended with the last step."""
        self.num_steps = 0
        """Steps run, failed ones included: if it does not change while there is work, the model hangs."""
        self._times, self._num_tokens = Durations(), 0
        self._is_idle = self._is_closed = self._is_ending = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether the thread runs steps or has calls."""
        return not (self._is_idle and self._arrivals.empty())

    def metrics(self) -> Iterator[Metric]:
        """Yield the metrics. Called in another thread."""
        running, num_waiting = [*self._running], len(self._waiting) + self._arrivals.qsize()
        kv_bytes = self._cache.num_bytes + sum(call.feed.prefix.kv.nbytes for call in running)
        yield (
            "semspec_engine_kv_bytes",
            "Memory taken by keys and values of running calls and of cached prefixes.",
            kv_bytes,
        )
        yield (
            "semspec_engine_max_kv_bytes",
            "Limit on semspec_engine_kv_bytes.",
            self.scheduler.max_kv_bytes,
        )
        yield "semspec_engine_calls_running", "Calls that take part in steps.", len(running)
        yield "semspec_engine_calls_waiting", "Calls that wait for memory.", num_waiting
        yield (
            "semspec_engine_preemptions_total",
            "Calls evicted for older ones.",
            self.scheduler.num_preempted,
        )
        yield (
            "semspec_engine_computed_tokens_total",
            "Tokens fed to the model, evicted ones each time they are fed again.",
            self._num_tokens,
        )
        yield "semspec_engine_step_duration_seconds", "Duration of forward passes.", self._times

    async def stream(self, steps: Steps[T], is_ahead: bool = False) -> AsyncGenerator[T, None]:
        """Run `steps` on the worker's thread and yield its results; `is_ahead`: see `GenerationParams`.

        Closing this generator closes `steps` on that thread, after the current step.

        Raises: Unavailable when closed, Overloaded when there are too many calls.
        """
        if self._is_closed:
            raise Unavailable("the engine is shut down", remedy="retry on another replica")
        if self._num_calls >= MAX_CALLS:
            raise Overloaded(f"the engine already has {MAX_CALLS} calls", remedy="retry later")
        call = _Call(steps, is_ahead)
        self._num_calls += 1
        self._arrivals.put(call)  # type: ignore[arg-type]
        try:
            while (result := await call.results.get()) is not None:
                if isinstance(result, BaseException):
                    raise result
                yield result
        finally:
            call.is_cancelled = True
            self._num_calls -= 1

    async def close(self) -> None:
        """Cancel all calls and stop the thread."""
        self._is_closed = True
        self._arrivals.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _run(self) -> None:
        """Run steps until closed. An unexpected error fails the current calls; the thread goes on with later ones."""
        while not self._is_ending:
            try:
                self._run_steps()
            except Exception:
                _log.exception("the engine failed its current calls after an unexpected error")
                self._abort_all(InternalError("the engine failed", remedy="see the service's log"))
        self._abort_all(Unavailable("the engine is shut down", remedy="retry on another replica"))

    @torch.inference_mode()
    def _run_steps(self) -> None:
        while self._receive():
            self._start()
            if self._running:
                self._compute(self.scheduler.plan([call.feed for call in self._running]))
            self.num_steps += 1

    def _abort_all(self, error: SemspecError) -> None:
        for call in [*self._running, *self._waiting]:
            call.abort(error)
        self._running.clear()
        self._waiting.clear()

    def _receive(self) -> bool:
        """Accept new calls, after waiting for one if there are none. Return False when closed."""
        if not (self._running or self._waiting):
            self._gather()
        while not self._arrivals.empty():
            self._accept(self._arrivals.get())
        return not self._is_ending

    def _gather(self) -> None:
        """Wait for a call, then briefly for as many as ended with the last step, whose callers may call again."""
        self._is_idle = True
        call = self._arrivals.get()
        self._is_idle = False
        self._accept(call)
        until = monotonic() + REGROUP_S
        while (
            len(self._waiting) < self._num_ended
            and not self._is_ending
            and (left_s := until - monotonic()) > 0
        ):
            with suppress(queue.Empty):
                self._accept(self._arrivals.get(timeout=left_s))

    def _accept(self, call: _Call[object] | None) -> None:
        if call is None:
            self._is_ending = True
        else:
            self._waiting.append(call)

    def _start(self) -> None:
        """End cancelled calls, and start waiting ones while there is room."""
        for call in [call for call in self._running if call.is_cancelled]:
            self._running.remove(call)
            call.abort(None)
        while self._waiting and self.scheduler.has_room([call.feed for call in self._running]):
            call = min(self._waiting, key=attrgetter("is_ahead"))  # of equal calls, the first
            self._waiting.remove(call)
            if call.advance():
                self._running.append(call)
        self._running.sort(key=attrgetter("is_ahead"))  # the last calls are evicted first

    def _compute(self, plan: list[tuple[Feed, int]]) -> None:
        """Run one step. If it fails, run its feeds one at a time, so that only the calls at fault fail."""
        start = perf_counter()
        try:
            outputs = run_step(self._lm, plan)
        except Exception as error:
            if len(plan) == 1:
                self._fail(plan[0][0], error)
                return
            _log.warning(
                "step of %d calls failed; running them one at a time: %s", len(plan), error
            )
            is_memory_short = isinstance(error, torch.OutOfMemoryError)
        else:
            self._times.add(perf_counter() - start)
            self._num_tokens += sum(num_tokens for _, num_tokens in plan)
            self._answer(outputs)
            return
        # Outside the except block, so that the error is released, and with it the frames that hold the step's tensors.
        if is_memory_short:
            self._free_memory()
        for part in plan:
            self._compute([part])
            self.num_steps += 1

    def _answer(self, outputs: list[tuple[Feed, Output]]) -> None:
        by_feed = {id(feed): output for feed, output in outputs}
        num_before = len(self._running)
        self._running = [
            call
            for call in self._running
            if (output := by_feed.get(id(call.feed))) is None or call.advance(output)
        ]
        self._num_ended = num_before - len(self._running)

    def _fail(self, feed: Feed, error: Exception) -> None:
        [call] = [call for call in self._running if call.feed is feed]
        self._running.remove(call)
        if isinstance(error, torch.OutOfMemoryError):
            _log.error(
                "out of memory with %d bytes in the prefix cache: %s", self._cache.num_bytes, error
            )
            error.with_traceback(None)  # its frames hold the step's tensors
            call.steps.close()  # returns its prefix to the cache, which is cleared before the caller may call again
            self._free_memory()
            call.abort(
                Overloaded(
                    "the engine has no memory left for this call",
                    remedy="retry later, or on another replica",
                )
            )
        else:
            call.abort(error)

    def _free_memory(self) -> None:
        self._cache.clear()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
