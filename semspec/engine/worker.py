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
"""How long a call that is ahead of need comes after others; by then someone may wait for it."""

REUNION_S = 0.001
"""How long callers that were answered together have to call again before a step runs without them."""

MAX_CALLS = 256
"""Maximum number of calls under way, waiting ones included."""

STEP_TOKENS = 512
"""Maximum tokens of a step, so that tokens of other calls need not wait long for a prompt."""

_log = logging.getLogger(__name__)


class _Call(Generic[T]):
    """A running call, and the queue of its results for the event loop."""

    def __init__(self, steps: Steps[T], is_ahead: bool) -> None:
        self.steps = steps
        self._ahead_until = monotonic() + AHEAD_S if is_ahead else 0.0
        self.feed: Feed
        """What the call waits for, once started."""
        self.is_cancelled = False
        self.results = Results[T]()
        self._loop = asyncio.get_running_loop()

    @property
    def is_ahead(self) -> bool:
        """Whether it comes after other calls."""
        return self._ahead_until > monotonic()

    def advance(self, output: Output | None = None) -> bool:
        """Run on, to the next feed; False when the call has ended."""
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

    def end(self, error: BaseException | None) -> None:
        """End the call before its time."""
        self.steps.close()
        self._send(error)

    def _send(self, result: T | BaseException | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self.results.put, result)
        except RuntimeError:  # the loop is closed, so there is no caller
            self.is_cancelled = True


class Results(Generic[T]):
    """The results of a call that its caller has not taken: texts of one segment are joined, so that a caller who is
    slower than the model has less to do. Not thread-safe."""

    def __init__(self) -> None:
        self._waiting: deque[T | BaseException | None] = deque()
        self._has_some = asyncio.Event()

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
        self._has_some.set()

    async def get(self) -> T | BaseException | None:
        """Take the first one, and wait for it."""
        while not self._waiting:
            self._has_some.clear()
            await self._has_some.wait()
        return self._waiting.popleft()


class Scheduler:
    """Plans steps within a budget of tokens, shared equally, and one of memory, given to the oldest calls first."""

    def __init__(
        self, cache: PrefixCache, max_kv_bytes: int, step_tokens: int = STEP_TOKENS
    ) -> None:
        """`max_kv_bytes`: keys and values of running calls and of cached prefixes together."""
        self.cache, self.max_kv_bytes, self._step_tokens = cache, max_kv_bytes, step_tokens
        self.num_preempted = 0  # calls whose keys and values were evicted

    def has_room(self, feeds: Sequence[Feed]) -> bool:
        """Whether another call may start beside `feeds`."""
        return not feeds or sum(feed.prefix.kv.nbytes for feed in feeds) < self.max_kv_bytes

    def plan(self, feeds: Sequence[Feed]) -> list[tuple[Feed, int]]:
        """The tokens to feed next of each of `feeds`, the oldest first.

        Where memory is short, cached prefixes are dropped first, then keys and values of the youngest calls, which are
        computed again when there is memory. The oldest call runs in any case, so that all calls end.
        """
        shares = equal_shares([feed.num_left for feed in feeds], self._step_tokens)
        growths = [feed.prefix.kv.growth_bytes(feed.end) for feed in feeds]
        if not any(growths):
            return list(zip(feeds, shares, strict=True))
        num_bytes = sum(feed.prefix.kv.nbytes for feed in feeds)
        planned: list[tuple[Feed, int]] = []
        for index, (feed, share) in enumerate(zip(feeds, shares, strict=True)):
            growth = feed.prefix.kv.growth_bytes(
                feed.end
            )  # more than before, if it was evicted for an older call
            if growth and not self._fits(num_bytes + growth):
                num_bytes -= self._evict(feeds[index + 1 :], num_bytes + growth)
                if index and not self._fits(num_bytes + growth):
                    continue
            num_bytes += growth
            planned.append((feed, share))
        return planned

    def _fits(self, num_bytes: int) -> bool:
        """Whether running calls may take so many bytes; drops cached prefixes for them."""
        while (
            is_too_much := num_bytes + self.cache.num_bytes > self.max_kv_bytes
        ) and self.cache.prefixes:
            self.cache.evict()
        return not is_too_much

    def _evict(self, younger: Sequence[Feed], num_bytes: int) -> int:
        """Drop keys and values of `younger`, the youngest first, until `num_bytes` fit. Returns how many were freed."""
        freed = 0
        for feed in reversed(younger):
            if self._fits(num_bytes - freed):
                break
            freed += feed.prefix.kv.nbytes
            self.num_preempted += feed.prefix.kv.num_tokens > 0
            feed.prefix.kv.clear()
        return freed


class Worker:
    """Admits calls between two steps, and answers their feeds."""

    def __init__(self, name: str, lm: CausalLM, cache: PrefixCache, scheduler: Scheduler) -> None:
        self._lm, self._cache, self.scheduler = lm, cache, scheduler
        self._arrivals: queue.SimpleQueue[_Call[object] | None] = queue.SimpleQueue()
        self._waiting: deque[_Call[object]] = deque()
        self._running: list[_Call[object]] = []
        self._num_calls = 0
        self._num_ended = 0
        """Number of calls that ended with the last step."""
        self.num_steps = 0
        """Steps made, failed ones included: while there is work and this stands still, the model hangs."""
        self._times, self._num_tokens = Durations(), 0
        self._is_idle = self._is_closed = self._is_ending = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether the thread computes, or has calls to compute."""
        return not (self._is_idle and self._arrivals.empty())

    def metrics(self) -> Iterator[Metric]:
        """Called in another thread."""
        running, num_waiting = [*self._running], len(self._waiting) + self._arrivals.qsize()
        kv_bytes = self._cache.num_bytes + sum(call.feed.prefix.kv.nbytes for call in running)
        yield (
            "semspec_engine_kv_bytes",
            "Keys and values of running calls and of cached prefixes.",
            kv_bytes,
        )
        yield (
            "semspec_engine_max_kv_bytes",
            "Keys and values that there may be.",
            self.scheduler.max_kv_bytes,
        )
        yield "semspec_engine_calls_running", "Calls that share steps.", len(running)
        yield "semspec_engine_calls_waiting", "Calls that wait for memory.", num_waiting
        yield (
            "semspec_engine_preemptions_total",
            "Calls evicted for older ones.",
            self.scheduler.num_preempted,
        )
        yield (
            "semspec_engine_computed_tokens_total",
            "Tokens fed, evicted ones again.",
            self._num_tokens,
        )
        yield "semspec_engine_step_duration_seconds", "Of forward passes.", self._times

    async def stream(self, steps: Steps[T], is_ahead: bool = False) -> AsyncGenerator[T, None]:
        """Run `steps` on the worker's thread and yield its results; `is_ahead`: see `GenerationParams`. Closing this
        generator closes `steps` there, after the current step.

        Raises: Unavailable when closed, Overloaded when there are too many calls.
        """
        if self._is_closed:
            raise Unavailable("the engine is shut down", remedy="retry on another replica")
        if self._num_calls >= MAX_CALLS:
            raise Overloaded(f"{MAX_CALLS} calls are under way", remedy="retry later")
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
        """Make steps until closed. After a defect the running calls fail and the thread goes on with later ones."""
        while not self._is_ending:
            try:
                self._make_steps()
            except Exception:
                _log.exception("the engine's thread failed and goes on; its calls fail")
                self._end_all(InternalError("the engine failed", remedy="its log has the details"))
        self._end_all(Unavailable("the engine is shut down", remedy="retry on another replica"))

    @torch.inference_mode()
    def _make_steps(self) -> None:
        while self._receive():
            self._start()
            if self._running:
                self._compute(self.scheduler.plan([call.feed for call in self._running]))
            self.num_steps += 1

    def _end_all(self, error: SemspecError) -> None:
        for call in [*self._running, *self._waiting]:
            call.end(error)
        self._running.clear()
        self._waiting.clear()

    def _receive(self) -> bool:
        """Take in new calls, waiting for one if there are none; False when closed."""
        if not (self._running or self._waiting):
            self._gather()
        while not self._arrivals.empty():
            self._accept(self._arrivals.get())
        return not self._is_ending

    def _gather(self) -> None:
        """Wait for a call, and a moment for as many as the last step answered: their callers may call again."""
        self._is_idle = True
        call = self._arrivals.get()
        self._is_idle = False
        self._accept(call)
        until = monotonic() + REUNION_S
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
            call.end(None)
        while self._waiting and self.scheduler.has_room([call.feed for call in self._running]):
            call = min(self._waiting, key=attrgetter("is_ahead"))  # the first of the equal ones
            self._waiting.remove(call)
            if call.advance():
                self._running.append(call)
        self._running.sort(key=attrgetter("is_ahead"))  # the last ones yield their memory first

    def _compute(self, plan: list[tuple[Feed, int]]) -> None:
        """One step. If it fails, its feeds run one at a time, so that only those fail that cannot be computed."""
        start = perf_counter()
        try:
            outputs = run_step(self._lm, plan)
        except Exception as error:
            if len(plan) == 1:
                self._fail(plan[0][0], error)
                return
            _log.warning("a step of %d calls failed, its calls run alone: %s", len(plan), error)
            is_memory_short = isinstance(error, torch.OutOfMemoryError)
        else:
            self._times.add(perf_counter() - start)
            self._num_tokens += sum(num_tokens for _, num_tokens in plan)
            self._answer(outputs)
            return
        # Outside the except block: the error, and with it the frames that hold the step's tensors, is released.
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
                "out of memory, with %d bytes in the cache: %s", self._cache.num_bytes, error
            )
            error.with_traceback(None)  # its frames hold the step's tensors
            call.steps.close()  # returns its prefix to the cache, which is emptied before the caller may call again
            self._free_memory()
            call.end(
                Overloaded(
                    "the engine has no memory left for this call",
                    remedy="retry later, or on another replica",
                )
            )
        else:
            call.end(error)

    def _free_memory(self) -> None:
        self._cache.clear()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
