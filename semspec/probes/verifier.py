"""The verifier: a default pair of probes for the states of two models, and named alternative pairs."""

import math
from asyncio import get_running_loop, wrap_future
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from semspec import __version__
from semspec.clustering.equivalence import Alternatives, Equivalence, clusters_of_whole
from semspec.clustering.loading import served_equivalence
from semspec.device import device_of
from semspec.errors import InvalidField, InvalidRequest, Mismatch
from semspec.observability import Durations, Metric
from semspec.probes.probe import LEAST_PROBABILITY, Artifact, ProbeCard, load_probe
from semspec.probes.projection import MAX_MAGNITUDE, ServedProbe
from semspec.protocols import StepCounter
from semspec.types import (
    Judgement,
    OperatingPoint,
    ProbeProjections,
    SegmentEnd,
    SegmentScore,
    States,
    VerifierInfo,
)

MAX_BATCH = 64
"""Number of segments from which on a batch takes no further call."""


class ProbePair:
    """A draft probe and a target probe that were trained together.

    Draft probabilities are at least `LEAST_PROBABILITY`: the draft generated the segment, and p/q must stay bounded.
    """

    def __init__(self, draft: Artifact, target: Artifact, device: str = "cpu") -> None:
        """`device`: a torch device or "auto". Raises: Mismatch when the two do not belong together."""
        if draft.card.features != "states":
            raise Mismatch(
                f"the draft probe wants {draft.card.features!r}, but a draft sends states only",
                remedy="if the two probes are swapped give them the other way round, else train this one on states",
            )
        if draft.card.segmentations != target.card.segmentations:
            raise Mismatch(
                "the two probes were trained on different segmentations",
                remedy="train them together",
            )
        device = device_of(device, "the probes")
        self.draft, self.target = ServedProbe(draft, device), ServedProbe(target, device)

    @classmethod
    def load(cls, folder: Path, device: str = "cpu") -> "ProbePair":
        """Load two artifacts. Raises: Mismatch, with a remedy, when they cannot serve together."""
        return cls(
            load_probe(folder / "draft.safetensors"),
            load_probe(folder / "target.safetensors"),
            device,
        )

    def check(self, draft_states: Sequence[States], scores: Sequence[SegmentScore]) -> None:
        """Raises: Mismatch when the states are not of the probes' models."""
        self.draft.check("draft", draft_states)
        self.target.check("target", [score.states for score in scores])

    @torch.inference_mode()
    def judge(
        self, draft_states: Sequence[States], scores: Sequence[SegmentScore]
    ) -> list[Judgement | str]:
        """Return a judgement for each segment, or the field of its call whose value is not a number or too large."""
        surprisal = torch.tensor([score.surprisal for score in scores])
        is_valid = (surprisal.abs() <= MAX_MAGNITUDE).all(1).tolist()
        draft = self.draft.probabilities(draft_states, surprisal)
        target = self.target.probabilities([score.states for score in scores], surprisal)
        return [_judgement(*numbers) for numbers in zip(draft, target, is_valid, strict=True)]


def _judgement(
    draft_probability: float, target_probability: float, has_valid_surprisal: bool
) -> Judgement | str:
    if math.isnan(draft_probability):
        return "draft_states[{}].pooled"
    if not has_valid_surprisal:
        return "readings[{}].surprisal"
    if math.isnan(target_probability):
        return "readings[{}].states.pooled"
    return Judgement(max(draft_probability, LEAST_PROBABILITY), target_probability)


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """A call of `judge` that waits for its batch."""

    pair: ProbePair
    draft_states: Sequence[States]
    scores: Sequence[SegmentScore]
    result: Future[list[Judgement]] = field(default_factory=Future)

    def finish(self, judgements: Sequence[Judgement | str]) -> None:
        for index, found in enumerate(judgements):
            if isinstance(found, str):
                reason = f"holds a value that is not a number or above {MAX_MAGNITUDE:g}"
                self.result.set_exception(InvalidField(reason, found.format(index)))
                return
        self.result.set_result([one for one in judgements if isinstance(one, Judgement)])


class ProbeVerifier:
    """A pure function from states to probabilities. See `semspec.protocols.Verifier`."""

    def __init__(
        self,
        own: ProbePair,
        alternatives: Mapping[str, ProbePair] | None = None,
        equivalence: tuple[str, Equivalence] | None = None,
    ) -> None:
        """`equivalence`: of meaning, with its name. Raises: Mismatch when an alternative has other models or
        segmentations than `own`, or the card of the target probe of `own` is malformed."""
        self._own, self._alternatives = own, dict(alternatives or {})
        self._equivalence = equivalence
        self._clustering = ThreadPoolExecutor(
            1, "clustering"
        )  # its own: judging never waits for it
        self._waiting: deque[_Call] = deque()
        self._thread = ThreadPoolExecutor(1, "probes")
        self._num_running = 0
        self.num_steps = self._num_segments = 0
        self._times = Durations()
        self._operating_points = operating_points(own.target.card)
        for name, pair in self._alternatives.items():
            _check_alternative(name, pair, own)

    @classmethod
    def load(
        cls, folder: Path, device: str = "cpu", equivalence: str | None = None
    ) -> "ProbeVerifier":
        """Load the two probes in a folder, and those in `alternatives`/NAME, if there is that folder. `equivalence`: as
        `served_equivalence` takes it. Raises: Mismatch, with a remedy, when they cannot serve."""
        own, others = ProbePair.load(folder, device), folder / "alternatives"
        named = served_equivalence(equivalence, own.target.card.training) if equivalence else None
        return cls(own, _load_alternatives(others, device) if others.is_dir() else None, named)

    @property
    def steps(self) -> StepCounter:
        """A step is a batch of one pair's segments."""
        return self

    @property
    def is_busy(self) -> bool:
        return self._num_running > 0

    def metrics(self) -> Iterator[Metric]:
        """Called in another thread."""
        yield "semspec_verifier_calls_waiting", "Calls that wait for a batch.", len(self._waiting)
        yield "semspec_verifier_segments_total", "Segments judged.", self._num_segments
        yield (
            "semspec_verifier_step_duration_seconds",
            "Of batches through the probes.",
            self._times,
        )

    async def info(self) -> VerifierInfo:
        return self.handshake()

    def handshake(self) -> VerifierInfo:
        """What `info` tells."""
        draft, target = self._own.draft, self._own.target
        return VerifierInfo(
            draft_model=draft.card.fingerprint,
            target_model=target.card.fingerprint,
            state_convention=target.card.state_convention,
            segmentations=target.card.segmentations,
            draft_probe=draft.digest,
            target_probe=target.digest,
            build=__version__,
            alternatives=tuple(self._alternatives),
            operating_points=self._operating_points,
            draft_tokenizer=draft.card.tokenizer,
            target_tokenizer=target.card.tokenizer,
            projections=tuple(
                _projections(name, pair)
                for name, pair in {"": self._own, **self._alternatives}.items()
            ),
            equivalence=self._equivalence[0] if self._equivalence else "",
        )

    async def judge(
        self, draft_states: Sequence[States], scores: Sequence[SegmentScore], probes: str = ""
    ) -> list[Judgement]:
        if not draft_states or len(draft_states) != len(scores):
            raise InvalidRequest(
                f"{len(draft_states)} draft states and {len(scores)} scores",
                "draft_states",
                remedy="send one of each per segment",
            )
        pair = self._pair(probes)
        pair.check(draft_states, scores)
        call = _Call(pair, draft_states, scores)
        self._waiting.append(call)
        self._thread.submit(self._judge_waiting)
        self._num_running += 1
        try:
            return await wrap_future(call.result)
        finally:
            self._num_running -= 1

    async def cluster(self, group: Alternatives, ends: Sequence[SegmentEnd]) -> list[int | None]:
        """See `semspec.clustering.equivalence.Clusterer`."""
        if self._equivalence is None:
            raise Mismatch(
                "this verifier has no equivalence of meaning",
                remedy="set SEMSPEC_VERIFIER_EQUIVALENCE",
            )
        equivalence = self._equivalence[1]
        (clusters,) = await get_running_loop().run_in_executor(
            self._clustering, clusters_of_whole, equivalence, [group], [ends]
        )
        return clusters

    def _judge_waiting(self) -> None:
        """Judge the calls that wait, of any sessions, as one batch; those that came meanwhile are the next one's."""
        calls: list[_Call] = []
        while self._waiting and sum(len(call.scores) for call in calls) < MAX_BATCH:
            call = self._waiting.popleft()
            if call.result.set_running_or_notify_cancel():
                calls.append(call)
        for pair in dict.fromkeys(call.pair for call in calls):
            group = [call for call in calls if call.pair is pair]
            start = perf_counter()
            try:
                draft_states = list(chain.from_iterable(call.draft_states for call in group))
                try:
                    judgements = iter(
                        pair.judge(draft_states, [score for call in group for score in call.scores])
                    )
                finally:
                    self.num_steps += 1  # before a caller learns of it
                self._times.add(perf_counter() - start)
                self._num_segments += len(draft_states)
                for call in group:
                    call.finish([next(judgements) for _ in call.scores])
            except Exception as error:
                for call in group:
                    if not call.result.done():
                        call.result.set_exception(error)

    def _pair(self, probes: str) -> ProbePair:
        if not probes:
            return self._own
        if probes not in self._alternatives:
            names = ", ".join(self._alternatives) or "none"
            raise InvalidRequest(
                f"there are no probes named {probes!r} beside the pair's own: {names}",
                "probes",
                remedy="name one of these, or add them to the release's folder `alternatives`",
            )
        return self._alternatives[probes]


def _projections(name: str, pair: ProbePair) -> ProbeProjections:
    draft, target = (
        probe.projection.digest if probe.projection else "" for probe in (pair.draft, pair.target)
    )
    return ProbeProjections(name, draft, target)


def _load_alternatives(folder: Path, device: str) -> dict[str, ProbePair]:
    """Alternative pairs by name. Hidden folders are ignored: a mounted volume may contain some."""
    paths = sorted(
        path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")
    )
    if not paths:
        raise Mismatch(f"{folder} holds no folder of probes", remedy="remove it, or put some there")
    pairs = dict[str, ProbePair]()
    for path in paths:
        try:
            pairs[path.name] = ProbePair.load(path, device)
        except Mismatch as error:
            raise Mismatch(
                f"alternative probes {path.name!r}: {error.message}", remedy=error.remedy
            ) from error
    return pairs


def _check_alternative(name: str, pair: ProbePair, own: ProbePair) -> None:
    remedy = f"train the probes {name!r} with the pair's own, or take them out of the folder `alternatives`"
    for role, card, expected in (
        ("draft", pair.draft.card, own.draft.card),
        ("target", pair.target.card, own.target.card),
    ):
        if card.fingerprint != expected.fingerprint:
            raise Mismatch(
                f"alternative probes {name!r}: the {role} probe was trained on {card.model} ({card.fingerprint}), "
                f"the pair's own on {expected.model} ({expected.fingerprint})",
                remedy=remedy,
            )
    if pair.target.card.segmentations != own.target.card.segmentations:
        raise Mismatch(
            f"alternative probes {name!r} were trained on other segmentations than the pair's own",
            remedy=remedy,
        )


def operating_points(card: ProbeCard) -> tuple[OperatingPoint, ...]:
    """Results of acceptance rules from the report in the card: by rising threshold, the rule `sample` last.

    Empty if the report has none. The last row is the rule `sample` if it has no threshold. Other rows without
    threshold, and rows without acceptance, are skipped. Raises: Mismatch when the rows cannot be parsed.
    """
    names = [field.name for field in fields(OperatingPoint)]
    try:
        rows = list(card.metrics.get("strictness") or ())
        known = [row for row in rows if row.get("acceptance") is not None]
        known = [row for row in known if row is rows[-1] or row.get("threshold") is not None]
        points = [OperatingPoint(**{name: _number(row, name) for name in names}) for row in known]
    except (AttributeError, TypeError, ValueError) as error:
        raise Mismatch(
            f"cannot read metrics.strictness in the card of the probe of {card.model}: {error}",
            remedy="train the probes again, or take it out",
        ) from error
    return tuple(
        sorted(points, key=lambda point: math.inf if point.threshold is None else point.threshold)
    )


def _number(row: dict[str, Any], name: str) -> Any:
    """The finite number in a row, or None."""
    if row.get(name) is None:
        return None
    number = float(row[name])
    if not math.isfinite(number):
        raise ValueError(f"{name} is {number}")
    return number
