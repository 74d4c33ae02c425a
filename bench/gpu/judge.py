"""Two random probes of the true sizes, and what judging a segment takes on the host and on the device."""

from functools import partial

import torch

from bench.gpu.models import Model, Pair
from bench.gpu.timing import Timer
from semspec.probes.probe import Probe, assemble, num_features, tensor_of
from semspec.types import SURPRISAL_FEATURES, SegmentScore, States

NUM_REPETITIONS = 30


class RandomProbes:
    """What the verifier does, on a device of choice: all layers of both models, and the target's surprisal."""

    def __init__(self, pair: Pair, device: torch.device) -> None:
        torch.manual_seed(3)
        self._device = device
        with device:
            self._draft = Probe(num_features("states", "all", _states_shape(pair.draft))).eval()
            self._target = Probe(num_features("states+surprisal", "all", _states_shape(pair.target))).eval()

    @torch.inference_mode()
    def judge(self, draft_states: States, reading: SegmentScore) -> tuple[float, float]:
        """Semantic probabilities of one segment: the draft's, the target's."""
        surprisal = torch.tensor([reading.surprisal], device=self._device)
        drafted, read = (self._on_device(states) for states in (draft_states, reading.states))
        draft_probability = self._draft(assemble("states", "all", drafted, None))
        target_probability = self._target(assemble("states+surprisal", "all", read, surprisal))
        return float(draft_probability), float(target_probability)

    def _on_device(self, states: States) -> torch.Tensor:
        return tensor_of([states.data], states.shape).to(self._device)


def measure_judge(timer: Timer, pair: Pair, limit_s: float) -> dict[str, object]:
    """Both probes over one segment's states, which come from the host: there by one thread, and on the device."""
    drafted, read = (_zeros(model) for model in (pair.draft, pair.target))
    reading = SegmentScore(read, (0.0,) * len(SURPRISAL_FEATURES), 1, 0.0)
    probes = {"host": RandomProbes(pair, torch.device("cpu")), "device": RandomProbes(pair, timer.device)}
    works = {place: partial(one.judge, drafted, reading) for place, one in probes.items()}
    samples = timer.interleaved(works, NUM_REPETITIONS, limit_s)
    sizes = {"draft": pair.draft.shape.num_state_values, "target": pair.target.shape.num_state_values}
    return {"num_state_values": sizes} | {place: sample.as_json() for place, sample in samples.items()}


def _states_shape(model: Model) -> tuple[int, int]:
    return model.shape.num_layers + 1, model.shape.hidden_size


def _zeros(model: Model) -> States:
    return States(bytes(4 * model.shape.num_state_values), _states_shape(model), model.shape.name)
