"""The audit: a share of accepted segments is judged again from samples of the target, while there is capacity to spare.

The gateway keeps a bounded number of accepted segments. While few enough generations run, it takes one, has the target
write the next segment several times in the same context, by calls that come after all others (ADR 6), and asks the
verifier which of these mean the same. A request that arrives ends the calls; the segment waits for the next pause.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean
from time import monotonic
from typing import Any, TypeVar

from semspec.clustering.equivalence import Alternatives, Clusterer
from semspec.decoding import Generation, Strategy
from semspec.decoding.generation import Progress
from semspec.decoding.steps import cancel_task, gather_or_cancel, write_all
from semspec.errors import SemspecError, Unavailable
from semspec.types import Context, Segment, SegmentRecord, derive_seed, uniform
from semspec_gateway.generation.admission import Admission
from semspec_gateway.generation.choice import Choice
from semspec_gateway.generation.loss import Finding, LossTest, finding, ratio_drift
from semspec_gateway.generation.request import GenerationRequest, at_strictness
from semspec_gateway.metrics import Metrics
from semspec_gateway.readiness import Readiness
from semspec_gateway.served import Served
from semspec_gateway.settings import GatewaySettings

MAX_WAITING = 256
"""Most segments waiting for the audit; the oldest is skipped for a new one."""
MAX_WAITING_BYTES = 32 << 20
"""Approximate bytes of the contexts of all waiting cases."""
WINDOW = 500
"""Number of latest segments that the gauges are about."""
PAUSE_S = 1.0
"""After a failure, and between looks at the services, in seconds."""
LOG_INTERVAL_S = 60.0
"""Least time between two log lines about skipped segments, in seconds."""

_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class Case:
    """An accepted segment and where it stands."""

    request: GenerationRequest
    generation: Generation
    served: Served
    context: Context
    segment: Segment
    target_probability: float
    """The probe's estimate."""

    @cached_property
    def num_bytes(self) -> int:
        """Approximate memory in bytes."""
        num_characters = sum(message.num_characters for message in self.request.messages)
        return 4 * num_characters + sum(piece.num_bytes for piece in self.context.pieces)

    @property
    def alternatives(self) -> Alternatives:
        """The question and the reasoning before the segment, without segments."""
        questions = [message.content for message in self.request.messages if message.role == "user"]
        reasoning = "".join(piece.text for piece in self.context.pieces[1:])
        return Alternatives(
            "", questions[-1] if questions else self.context.pieces[0].text, reasoning, ()
        )


@dataclass(slots=True)
class Audited:
    """Results of the audit for one pair and its probes."""

    served: Served
    test: LossTest
    findings: deque[Finding] = field(default_factory=lambda: deque(maxlen=WINDOW))
    gaps: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    ratios: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def ratio_drift(self) -> float:
        return ratio_drift(self.ratios, self.served.verifier.operating_points) or 0.0


class Audit:
    """Compares accepted segments with what the target would have said, and raises an alarm when they fall short.

    It covers requests that the pair's main probes judge under the gateway's default rule, not under rules that clients
    choose. Everything is in memory: contexts are neither stored nor logged, and a restart begins anew.
    """

    def __init__(
        self,
        readiness: Readiness,
        admission: Admission,
        metrics: Metrics,
        settings: GatewaySettings,
    ) -> None:
        self._readiness, self._admission = readiness, admission
        self._metrics, self._settings = metrics.audit, settings
        self._cases: deque[Case] = deque()
        self._changed = asyncio.Event()
        admission.on_change = self._changed.set
        self._logged_at = -LOG_INTERVAL_S
        self._audited: Audited | None = None
        self._metrics.waiting.set_function(lambda: len(self._cases))

    def offer(self, choice: Choice, record: SegmentRecord) -> None:
        """Note a judged segment, which comes after the records of `choice`, and keep a share of the accepted ones."""
        judgement, generation = record.judgement, choice.generation
        if record.accepted is None or judgement is None or not self._is_audited(choice):
            return
        audited = self._known(choice.served) or self._begin(choice.served)
        ratio = (
            judgement.target_probability / judgement.draft_probability
            if judgement.draft_probability
            else 1e9
        )
        audited.ratios.append(ratio)
        is_drawn = (
            uniform(generation.sampling.seed, "audit", record.index) < self._settings.audit.share
        )
        if not (record.accepted and is_drawn):
            return
        context = generation.context.extended(*(kept.segment for kept in choice.records))
        case = Case(
            choice.request,
            generation,
            choice.served,
            context,
            record.segment,
            judgement.target_probability,
        )
        self._cases.append(case)
        self._drop_surplus()
        self._changed.set()

    def tightened_strictness(self, strategy: Strategy, served: Served) -> float | None:
        """The audit's strictness while the alarm stands, for a request that chose neither a strictness nor another rule
        than the default, if it is stricter than that."""
        strictness = self._settings.audit.strictness
        if (
            strictness is None
            or not self._has_alarm(served)
            or not self._is_default(strategy, served)
        ):
            return None
        acceptance = strategy.options.acceptance
        threshold = at_strictness(strictness, served.verifier.operating_points).threshold
        return (
            strictness
            if acceptance.rule == "sample" or threshold > (acceptance.threshold or 0)
            else None
        )

    def _is_default(self, strategy: Strategy, served: Served) -> bool:
        """Whether the pair's main probes judge by the gateway's default rule."""
        default = served.default(strategy.name)
        return (
            strategy.is_judged_by_main_probes
            and strategy.options.acceptance == default.options.acceptance
        )

    async def watch(self) -> None:
        """Judge the kept segments again, one after another, until cancelled."""
        while True:
            while not (self._cases and self._is_idle()):
                self._changed.clear()
                # Nothing sets the event when a service comes back.
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), PAUSE_S)
            case = self._cases.popleft()
            try:
                result = await self._while_idle(self._finding(case))
            except SemspecError as error:
                self._skip("failed", error.text)
                await asyncio.sleep(PAUSE_S)
                continue
            if result is None:
                self._cases.appendleft(case)
                self._drop_surplus()
            elif (audited := self._known(case.served)) is not None:
                self._record(audited, case, result)
            else:
                self._skip("other probes")

    def _is_audited(self, choice: Choice) -> bool:
        request, served = choice.request, choice.served
        strategy, chosen = request.strategy, self._settings.audit.strictness
        is_tightened = (
            chosen is not None and request.strictness == chosen and self._has_alarm(served)
        )
        is_default = request.strictness is None and self._is_default(strategy, served)
        current = self._readiness.status.served
        is_served = current is not None and _identity(current) == _identity(served)
        return is_served and strategy.is_judged_by_main_probes and (is_default or is_tightened)

    def _is_idle(self) -> bool:
        status, admission = self._readiness.status, self._admission
        is_well = status.served is not None and status.error is None and status.missing is None
        has_room = (
            admission.num_running <= self._settings.audit.max_running and not admission.num_waiting
        )
        return has_room and is_well and not self._readiness.is_draining

    async def _while_idle(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of `work`, or None if it was cancelled for a request. Raises: what `work` raises."""
        task = asyncio.create_task(work)
        try:
            while not task.done() and self._is_idle():
                self._changed.clear()
                waiter = asyncio.create_task(self._changed.wait())
                try:
                    await asyncio.wait((task, waiter), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    waiter.cancel()
            return task.result() if task.done() else None
        finally:
            await cancel_task(task)

    async def _finding(self, case: Case) -> Finding:
        """Raises: what the target and the verifier raise."""
        backends, generation = case.served.pinned, case.generation
        params = replace(
            Progress(generation, case.context).params("target", 1), num_logprobs=None, is_ahead=True
        )
        seed = derive_seed(generation.sampling.seed, "audit", len(case.context.pieces))
        sampling = replace(
            params.sampling,
            temperature=params.sampling.temperature or self._settings.defaults.temperature,
        )
        seeds = [
            derive_seed(seed, "sample", number) for number in range(self._settings.audit.samples)
        ]
        written = await gather_or_cancel(
            write_all(
                backends.target,
                case.context,
                replace(params, sampling=replace(sampling, seed=seed)),
            )
            for seed in seeds
        )
        if not all(written):
            raise Unavailable("the target ended its stream without a segment")
        segments = [case.segment, *(first.segment for first, *_ in written)]
        group = replace(case.alternatives, segments=tuple(segment.text for segment in segments))
        verifier = backends.verifier
        if not isinstance(verifier, Clusterer):
            raise Unavailable("the verifier has no equivalence of meaning")
        return finding(await verifier.cluster(group, [segment.end for segment in segments]))

    def _record(self, audited: Audited, case: Case, result: Finding) -> None:
        test, release = audited.test, audited.served.label
        had_alarm = test.has_alarm
        test.add(result.loss)
        audited.findings.append(result)
        audited.gaps.append(case.target_probability - result.share)
        support = fmean(judged.support for judged in audited.findings)
        reference = fmean(judged.reference for judged in audited.findings)
        self._metrics.judged(release, result.support > 0, support, reference, fmean(audited.gaps))
        self._metrics.tested(release, test.evidence, test.has_alarm)
        if test.has_alarm and not had_alarm:
            numbers = {
                "support": round(support, 3),
                "reference": round(reference, 3),
                "release": release,
            }
            numbers |= {"num_segments": test.num_segments, "tolerance": test.tolerance}
            _log.error(
                "audit: the target supports accepted segments less often than its own",
                extra=numbers,
            )

    def _begin(self, served: Served) -> Audited:
        """Forget what is known of other probes or models, and begin anew."""
        self._audited = audited = Audited(served, LossTest(self._settings.audit.tolerance))
        self._metrics.tested(served.label, audited.test.evidence, has_alarm=False)
        self._metrics.ratio_drift.labels(served.label).set_function(audited.ratio_drift)
        return audited

    def _known(self, served: Served) -> Audited | None:
        """Return the results for these probes and models; None: there are none."""
        audited = self._audited
        return audited if audited and _identity(audited.served) == _identity(served) else None

    def _has_alarm(self, served: Served) -> bool:
        """Whether the probes lose more than is tolerated."""
        audited = self._known(served)
        return audited is not None and audited.test.has_alarm

    def _drop_surplus(self) -> None:
        while (
            len(self._cases) > MAX_WAITING
            or sum(case.num_bytes for case in self._cases) > MAX_WAITING_BYTES
        ):
            self._cases.popleft()
            self._skip(
                "no spare capacity", "raise max_running or lower share of SEMSPEC_GATEWAY_AUDIT"
            )

    def _skip(self, reason: str, detail: str = "") -> None:
        """Count a segment that is not judged again, and say so, at most once in `LOG_INTERVAL_S`."""
        self._metrics.skipped.labels(reason).inc()
        if monotonic() - self._logged_at >= LOG_INTERVAL_S:
            self._logged_at = monotonic()
            _log.warning(
                "audit: skips segments: %s", reason, extra={"detail": detail} if detail else None
            )


def _identity(served: Served) -> tuple[str, ...]:
    return (*served.identity.values(), served.verifier.equivalence)
