"""An engine whose steps last as long as a table says: the tokens are the model's own, the time is a stated GPU's."""

import time
from collections.abc import Callable, Sequence

from semspec.engine.causal_lm import CausalLM
from semspec.engine.steps import Feed, Output, run_step
from semspec.engine.worker import Worker
from semspec.errors import Mismatch
from semspec.protocols import Engine
from semspec_bench.pace.counts import TOLERANCE, Counts
from semspec_bench.pace.gpu import Gpu, slices
from semspec_bench.pace.table import StepTimes


class PacedStep:
    """A step of an engine that ends when the emulated one would.

    An emulated step begins when the one before it ended, or when work began after a pause, so what the engine's thread
    does between two steps is within their time. A step that ends a little late is made up for by the next one.
    """

    def __init__(
        self,
        times: StepTimes,
        dilation: float,
        report: Callable[[Counts], None] = lambda counts: None,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
        gpu: Gpu | None = None,
    ) -> None:
        """`dilation`: factor of the table's times; `report` is told the counts after each step; `gpu`: one that other
        engines use too."""
        self.resumed_at: Callable[[], float] = lambda: 0.0
        """Time of `clock` at which work last began after a pause."""
        self.counts = Counts()
        self._times, self._dilation, self._report = times, dilation, report
        self._clock, self._sleep, self._gpu = clock, sleep, gpu or Gpu()
        self._end = 0.0

    def __call__(self, lm: CausalLM, plan: Sequence[tuple[Feed, int]]) -> list[tuple[Feed, Output]]:
        start = self._clock()
        num_tokens = sum(num_tokens for _, num_tokens in plan)
        outputs = run_step(lm, plan)
        self.wait(start, len(plan), num_tokens)
        return outputs

    def wait(self, start: float, num_sequences: int, num_tokens: int) -> None:
        """Sleep for the rest of a step whose computation began at `start` and is done."""
        duration = self._dilation * self._times.step_ms(num_sequences, num_tokens) / 1e3
        due, done = max(self._end, self.resumed_at()), self._clock()
        for part in slices(duration, self._gpu.slice_s):
            due = self._gpu.take(due, part)
            if (now := self._clock()) < due:
                self._sleep(due - now)
        behind = self._clock() - due
        is_late = behind > TOLERANCE * duration
        self._end = due + behind if is_late else due
        own = Counts(1, is_late, duration, behind if is_late else 0.0, done - start)
        self.counts = self.counts.plus(own)
        self._report(self.counts)


def load_paced(load: Callable[[], Engine], step: PacedStep) -> Engine:
    """The engine that `load` loads, with paced steps. Raises: Mismatch when it does not make them in this process."""
    engine = load()
    worker = getattr(engine, "steps", None)
    if not isinstance(worker, Worker):
        raise Mismatch(
            "the engine cannot be paced", remedy="set the engine to auto, fast or transformers"
        )
    worker.step, step.resumed_at = step, lambda: worker.resumed_at
    return engine
