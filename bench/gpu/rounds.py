"""Whole rounds on the device: the draft writes, the target scores, the probes judge, and a listed verdict decides.

The probes are random, so their results are not used: verdicts are replayed so that the target writes the same share of
tokens as in the paper."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from time import perf_counter

import torch

from semspec.bench.gpu.forwards import SAMPLING
from semspec.bench.gpu.models import Model, Pair, random_context
from semspec.bench.gpu.timing import Timer
from semspec.engine.kv_cache import FIRST_CAPACITY, BufferKV
from semspec.engine.protocol import Engine
from semspec.engine.transformers_engine import TransformersEngine
from semspec.probes.probe import Probe, assemble, num_features, tensor_of
from semspec.types import (
    SURPRISAL_FEATURES,
    Context,
    GeneratedSegment,
    GenerationParams,
    Segment,
    SegmentScore,
    States,
    Writer,
)

NUM_REPETITIONS = 30
CACHE_BYTES = 6 << 30


class RandomProbes:
    """The verifier's computation on a given device: all layers of both models, and the target's surprisal."""

    def __init__(self, pair: Pair, device: torch.device) -> None:
        torch.manual_seed(3)
        self._device = device
        with device:
            self._draft = Probe(num_features("states", "all", _states_shape(pair.draft))).eval()
            self._target = Probe(num_features("states+surprisal", "all", _states_shape(pair.target))).eval()

    @torch.inference_mode()
    def judge(self, draft_states: States, score: SegmentScore) -> tuple[float, float]:
        """Semantic probabilities of one segment under draft and target."""
        surprisal = torch.tensor([score.surprisal], device=self._device)
        drafted, read = (self._on_device(states) for states in (draft_states, score.states))
        draft_probability = self._draft(assemble("states", "all", drafted, None))
        target_probability = self._target(assemble("states+surprisal", "all", read, surprisal))
        return float(draft_probability), float(target_probability)

    def _on_device(self, states: States) -> torch.Tensor:
        return tensor_of([states.data], states.shape).to(self._device)


def measure_judge(timer: Timer, pair: Pair, limit_s: float) -> dict[str, object]:
    """Time both probes on one segment's states, copied from the host: on the host by one thread, and on the device."""
    drafted, read = (_zeros(model) for model in (pair.draft, pair.target))
    score = SegmentScore(read, (0.0,) * len(SURPRISAL_FEATURES), 1, 0.0)
    probes = {"host": RandomProbes(pair, torch.device("cpu")), "device": RandomProbes(pair, timer.device)}
    works = {place: partial(random.judge, drafted, score) for place, random in probes.items()}
    samples = timer.interleaved(works, NUM_REPETITIONS, limit_s)
    sizes = {"draft": pair.draft.shape.num_state_values, "target": pair.target.shape.num_state_values}
    return {"num_state_values": sizes} | {place: sample.as_json() for place, sample in samples.items()}


def _states_shape(model: Model) -> tuple[int, int]:
    return model.shape.num_layers + 1, model.shape.hidden_size


def _zeros(model: Model) -> States:
    return States(bytes(4 * model.shape.num_state_values), _states_shape(model), model.shape.name)


@dataclass(frozen=True, slots=True)
class Round:
    """Durations of one round's stages."""

    draft_ms: float
    read_ms: float
    judge_ms: float
    rewrite_ms: float = 0.0
    """0 when the segment was accepted."""

    @property
    def in_turn_ms(self) -> float:
        return self.draft_ms + self.read_ms + self.judge_ms + self.rewrite_ms


def verdicts(target_ratio: float, num_rounds: int) -> list[bool]:
    """True: accepted. The share of rejections approximates `target_ratio`; they are spread evenly."""
    num_rejected = round(target_ratio * num_rounds)
    return [
        (index + 1) * num_rejected // num_rounds == index * num_rejected // num_rounds for index in range(num_rounds)
    ]


def ahead_ms(rounds: Sequence[Round]) -> float:
    """Time of `rounds` if the draft, on a separate device, wrote each segment while the previous one was scored and
    judged. Segments drafted after a rejected one are discarded."""
    total, overlap = 0.0, 0.0
    for times in rounds:
        total += max(0.0, times.draft_ms - overlap) + times.read_ms + times.judge_ms + times.rewrite_ms
        overlap = 0.0 if times.rewrite_ms else times.read_ms + times.judge_ms
    return total


class RoundRunner:
    """Runs rounds with a pair's engines on a random prompt."""

    def __init__(self, timer: Timer, pair: Pair, probes: RandomProbes, prompt_tokens: int, segment_tokens: int) -> None:
        self._timer, self._pair, self._probes, self._segment_tokens = timer, pair, probes, segment_tokens
        self._vocab_size = pair.draft.shape.vocab_size
        self._draft = TransformersEngine(pair.draft.lm, Writer.DRAFT, CACHE_BYTES)
        self._target = TransformersEngine(pair.target.lm, Writer.TARGET, CACHE_BYTES)
        self._prompt = random_context(prompt_tokens, self._vocab_size, seed=5)

    def capture_graphs(self, window: int) -> None:
        """Capture the CUDA graphs of all sequence lengths up to the window, instead of on first use."""
        for model in (self._pair.draft, self._pair.target):
            capacity = FIRST_CAPACITY
            while capacity <= window:
                kv = model.lm.new_kv()
                if isinstance(kv, BufferKV):
                    kv.reserve(capacity)
                model.lm.forward([0], kv)
                capacity *= 2

    async def warm_up(self) -> None:
        """Prefill the prompt, and run one round of each kind."""
        await self.replay([True, False], "warm-up")
        await self.alone(1)

    async def alone(self, num_segments: int) -> tuple[float, list[float]]:
        """Time of the target writing `num_segments` segments alone, in milliseconds: total, and of each segment."""
        num_tokens = num_segments * self._segment_tokens
        params = replace(self._params("alone"), max_segments=num_segments, max_tokens=num_tokens)
        start = self._now()
        written = [segment async for segment in self._target.generate(self._prompt, params)]
        elapsed_ms = (self._now() - start) * 1e3
        if sum(len(item.segment.token_ids) for item in written) != num_tokens:
            raise RuntimeError("the target ended before its budget; it was given an end-of-sequence token it can draw")
        return elapsed_ms, [item.duration_ms for item in written]

    async def replay(self, accepted: Sequence[bool], session: str) -> list[Round]:
        """Run one round per verdict, each after the segments kept before."""
        context, rounds = self._prompt, []
        for is_accepted in accepted:
            segment, times = await self._round(context, is_accepted, session)
            context = context.extended(segment)
            rounds.append(times)
        return rounds

    async def aclose(self) -> None:
        await self._draft.aclose()
        await self._target.aclose()

    async def _round(self, context: Context, is_accepted: bool, session: str) -> tuple[Segment, Round]:
        params, marks = self._params(session), [self._now()]
        drafted = await _first(self._draft, context, replace(params, want_states=True))
        marks.append(self._now())
        [score] = await self._target.score(context, [drafted.segment], session)
        marks.append(self._now())
        if drafted.states is None:
            raise RuntimeError("the draft sent no states")
        self._probes.judge(drafted.states, score)
        marks.append(self._now())
        draft_ms, read_ms, judge_ms = ((after - before) * 1e3 for before, after in pairwise(marks))
        if is_accepted:
            return drafted.segment, Round(draft_ms, read_ms, judge_ms)
        written = await _first(self._target, context, params)
        rewrite_ms = (self._now() - marks[-1]) * 1e3
        return self._for_both(written.segment), Round(draft_ms, read_ms, judge_ms, rewrite_ms)

    def _params(self, session: str) -> GenerationParams:
        return GenerationParams(
            SAMPLING, max_tokens=self._segment_tokens, max_segment_tokens=self._segment_tokens, session=session
        )

    def _for_both(self, segment: Segment) -> Segment:
        """The segment in the draft's vocabulary: random weights may sample the target's padding tokens (1 in 1,200),
        for which the draft has no embedding."""
        return replace(segment, token_ids=tuple(token % self._vocab_size for token in segment.token_ids))

    def _now(self) -> float:
        self._timer.synchronize()
        return perf_counter()


async def _first(engine: Engine, context: Context, params: GenerationParams) -> GeneratedSegment:
    async for written in engine.generate(context, params):
        return written
    raise RuntimeError("the engine wrote nothing")
