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
"""A batch with this many segments takes no further call."""


class ProbePair:
    """A draft probe and a target probe that were trained together.

    Draft probabilities are at least `LEAST_PROBABILITY`: the draft generated the segment, and p/q must stay bounded.
    """

    def __init__(self, draft: Artifact, target: Artifact, device: str = "cpu") -> None:
        """`device`: a torch device or "auto". Raises: Mismatch when the two do not belong together."""
        if draft.card.features != "states":
            raise Mismatch(
                f"the draft probe needs {draft.card.features!r}, but a draft only sends states",
                remedy="swap the two probes if they are in the wrong order, or train this one on states",
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
        """Return a judgement of each segment, or the name of a field with a NaN or a too large value.

        The name has `{}` in place of the index of the segment in its call.
        """
        surprisal = torch.tensor([score.surprisal for score in scores])
        is_valid = (surprisal.abs() <= MAX_MAGNITUDE).all(1).tolist()
        draft = self.draft.probabilities(draft_states, surprisal)
        target = self.target.probabilities([score.states for score in scores], surprisal)
        return [_judgement(*numbers) for numbers in zip(draft, target, is_valid, strict=True)]


def _judgement(
    draft_probability: float, target_probability: float, has_valid_surprisal: bool
) -> Judgement | str:
    if math.isnan(draft_probability):
        return "draft_states[{}].data"
    if not has_valid_surprisal:
        return "scores[{}].surprisal"
    if math.isnan(target_probability):
        return "scores[{}].states.data"
    return Judgement(max(draft_probability, LEAST_PROBABILITY), target_probability)


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """A call of `judge` that waits for its batch."""

    pair: ProbePair
    draft_states: Sequence[States]
    scores: Sequence[SegmentScore]
    result: Future[list[Judgement]] = field(default_factory=Future)

    def finish(self, results: Sequence[Judgement | str]) -> None:
        """Set the judgements, or an error for the first invalid field; `results`: from `ProbePair.judge`."""
        judgements = []
        for index, result in enumerate(results):
            if isinstance(result, str):
                reason = f"holds a value that is not a number or above {MAX_MAGNITUDE:g}"
                self.result.set_exception(InvalidField(reason, result.format(index)))
                return
            judgements.append(result)
        self.result.set_result(judgements)


class ProbeVerifier:
    """Computes probabilities from states, in batches. See `semspec.protocols.Verifier`."""

    def __init__(
        self,
        default: ProbePair,
        alternatives: Mapping[str, ProbePair] | None = None,
        equivalence: tuple[str, Equivalence] | None = None,
    ) -> None:
        """`equivalence`: of meaning, with its name.

        Raises: Mismatch when an alternative has other models or segmentations than `default`, or the card of the target
        probe of `default` is malformed.
        """
        self._default, self._alternatives = default, dict(alternatives or {})
        self._equivalence = equivalence
        self._clustering = ThreadPoolExecutor(1, "clustering")  # separate: judging never waits
        self._waiting: deque[_Call] = deque()
        self._thread = ThreadPoolExecutor(1, "probes")
        self._num_running = 0
        self.num_steps = self._num_segments = 0
        self._times = Durations()
        self._operating_points = operating_points(default.target.card)
        for name, pair in self._alternatives.items():
            _check_alternative(name, pair, default)

    @classmethod
    def load(
        cls, folder: Path, device: str = "cpu", equivalence: str | None = None
    ) -> "ProbeVerifier":
        """Load the two probes in a folder, and the pairs in its folders `alternatives`/NAME, if any.

        `equivalence`: see `served_equivalence`.

        Raises: Mismatch, with a remedy, when they cannot be served.
        """
        default, others = ProbePair.load(folder, device), folder / "alternatives"
        training = default.target.card.training
        named = served_equivalence(equivalence, training) if equivalence else None
        return cls(default, _load_alternatives(others, device) if others.is_dir() else None, named)

    @property
    def steps(self) -> StepCounter:
        """The counter of steps, which are batches of one pair's segments."""
        return self

    @property
    def is_busy(self) -> bool:
        return self._num_running > 0

    def metrics(self) -> Iterator[Metric]:
        """Yield the metrics. Called in another thread."""
        yield "semspec_verifier_calls_waiting", "Calls that wait for a batch.", len(self._waiting)
        yield "semspec_verifier_segments_total", "Segments judged.", self._num_segments
        yield (
            "semspec_verifier_step_duration_seconds",
            "Duration of batches through the probes.",
            self._times,
        )

    async def info(self) -> VerifierInfo:
        return self.handshake()

    def handshake(self) -> VerifierInfo:
        """Return the result of `info`."""
        draft, target = self._default.draft, self._default.target
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
                for name, pair in {"": self._default, **self._alternatives}.items()
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
        """Cluster segments by meaning. See `semspec.clustering.equivalence.Clusterer`."""
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
        """Judge the waiting calls of all sessions as one batch; later calls are left to the next batch."""
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
                    self.num_steps += 1  # before any caller gets a result
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
            return self._default
        if probes not in self._alternatives:
            names = ", ".join(self._alternatives) or "none"
            raise InvalidRequest(
                f"there are no probes named {probes!r}; alternatives to the pair's own probes: {names}",
                "probes",
                remedy="name an alternative, or add the probes to the folder `alternatives` of the release",
            )
        return self._alternatives[probes]


def _projections(name: str, pair: ProbePair) -> ProbeProjections:
    draft, target = (
        probe.projection.digest if probe.projection else "" for probe in (pair.draft, pair.target)
    )
    return ProbeProjections(name, draft, target)


def _load_alternatives(folder: Path, device: str) -> dict[str, ProbePair]:
    """Load alternative pairs, by name. Hidden folders, which mounted volumes may have, are ignored."""
    paths = sorted(
        path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")
    )
    if not paths:
        raise Mismatch(
            f"{folder} holds no folder of probes", remedy="remove it, or add a folder with probes"
        )
    pairs = dict[str, ProbePair]()
    for path in paths:
        try:
            pairs[path.name] = ProbePair.load(path, device)
        except Mismatch as error:
            raise Mismatch(
                f"alternative probes {path.name!r}: {error.message}", remedy=error.remedy
            ) from error
    return pairs


def _check_alternative(name: str, pair: ProbePair, default: ProbePair) -> None:
    """Raises: Mismatch when an alternative pair has other models or segmentations than the default pair."""
    remedy = f"train the probes {name!r} with the pair's own, or take them out of the folder `alternatives`"
    for role, card, expected in (
        ("draft", pair.draft.card, default.draft.card),
        ("target", pair.target.card, default.target.card),
    ):
        if card.fingerprint != expected.fingerprint:
            raise Mismatch(
                f"alternative probes {name!r}: the {role} probe was trained on {card.model} ({card.fingerprint}), "
                f"the pair's own on {expected.model} ({expected.fingerprint})",
                remedy=remedy,
            )
    if pair.target.card.segmentations != default.target.card.segmentations:
        raise Mismatch(
            f"alternative probes {name!r} were trained on other segmentations than the pair's own",
            remedy=remedy,
        )


def operating_points(card: ProbeCard) -> tuple[OperatingPoint, ...]:
    """Return the results of acceptance rules in the card's report, by ascending threshold, the rule `sample` last.

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
    """Return the finite number `name` of a row; None if it has none."""
    if row.get(name) is None:
        return None
    number = float(row[name])
    if not math.isfinite(number):
        raise ValueError(f"{name} is {number}")
    return number
