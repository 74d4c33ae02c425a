"""Times work on a device, interleaved with its alternatives, and computes lower bounds of a forward from the device's
memory bandwidth and matrix throughput."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from time import perf_counter

import torch

from semspec.bench.gpu.shapes import ELEMENT_BYTES, Scale, Shape

Work = Callable[[], object]

LEAST_REPETITIONS = 3
NUM_REPETITIONS = 20


@dataclass(frozen=True, slots=True)
class Sample:
    """Statistics of repeated measurements, in milliseconds."""

    median_ms: float
    first_quartile_ms: float
    third_quartile_ms: float
    least_ms: float
    num_repetitions: int

    def over(self, num_parts: int) -> "Sample":
        """The sample for one of `num_parts` equal parts of the work."""
        return Sample(
            self.median_ms / num_parts,
            self.first_quartile_ms / num_parts,
            self.third_quartile_ms / num_parts,
            self.least_ms / num_parts,
            self.num_repetitions,
        )

    def as_json(self) -> dict[str, float]:
        return {name: round(value, 5) for name, value in asdict(self).items()}


def summarised(times_ms: list[float]) -> Sample:
    """Statistics of at least one time."""
    first, _, third = quantiles(times_ms, n=4, method="inclusive") if len(times_ms) > 1 else times_ms * 3
    return Sample(median(times_ms), first, third, min(times_ms), len(times_ms))


class Timer:
    """Times work on one device, which is synchronized before and after."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._is_cuda = device.type == "cuda"

    def synchronize(self) -> None:
        if self._is_cuda:
            torch.cuda.synchronize(self.device)

    def ms(self, work: Work) -> float:
        """Duration of `work` in milliseconds; CUDA events include waits for the host but no timer overhead."""
        self.synchronize()
        return self._event_ms(work) if self._is_cuda else self._wall_ms(work)

    def interleaved(self, works: Mapping[str, Work], num_repetitions: int, limit_s: float) -> dict[str, Sample]:
        """Run each work once per repetition, in alternating order, after one repetition to warm up.

        Ends early, but not before `LEAST_REPETITIONS`, when `limit_s` seconds are over.
        """
        for work in works.values():
            self.ms(work)
        times: dict[str, list[float]] = {name: [] for name in works}
        names, end = list(works), perf_counter() + limit_s
        for repetition in range(max(num_repetitions, LEAST_REPETITIONS)):
            if repetition >= LEAST_REPETITIONS and perf_counter() > end:
                break
            for name in names:
                times[name].append(self.ms(works[name]))
            names.reverse()
        return {name: summarised(each) for name, each in times.items()}

    def _event_ms(self, work: Work) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        self.synchronize()
        return float(start.elapsed_time(end))

    def _wall_ms(self, work: Work) -> float:
        start = perf_counter()
        work()
        return (perf_counter() - start) * 1e3


@dataclass(frozen=True, slots=True)
class Light:
    """Measured peak rates of the device."""

    bandwidth_bytes_per_s: float
    flops_per_s: float
    """bf16 multiplications and additions."""

    def decode_ms(self, shape: Shape, context: int) -> float:
        """Lower bound for decoding one token after `context` tokens."""
        return self.forward_ms(shape, 1, context, 1)

    def forward_ms(self, shape: Shape, num_tokens: int, context: int, num_logits: int) -> float:
        """Lower bound of a forward: all weights but the embedding table, and all keys and values, are read once; each
        weight is multiplied with each token, each query with each key and value before it."""
        num_weights = shape.num_body_parameters + shape.num_head_parameters
        read_bytes = ELEMENT_BYTES * num_weights + shape.kv_bytes_per_token * (context + num_tokens)
        pairs = num_tokens * (context + (num_tokens + 1) / 2)
        attention = 4 * shape.num_layers * shape.hidden_size * pairs
        products = 2 * (shape.num_body_parameters * num_tokens + shape.num_head_parameters * num_logits)
        return 1e3 * max(read_bytes / self.bandwidth_bytes_per_s, (products + attention) / self.flops_per_s)


def measure_light(timer: Timer, scale: Scale, limit_s: float) -> tuple[Light, dict[str, object]]:
    """Measure the peak rates by a large copy (bytes read and written) and a product of square matrices; medians."""
    source = torch.ones(scale.copy_bytes, dtype=torch.uint8, device=timer.device)
    copied = torch.empty_like(source)
    side = scale.matrix_side
    left, right = (torch.randn(side, side, device=timer.device).bfloat16() for _ in range(2))
    product = torch.empty_like(left)
    works = {"copy": lambda: copied.copy_(source), "product": lambda: torch.mm(left, right, out=product)}
    samples = timer.interleaved(works, NUM_REPETITIONS, limit_s)
    light = Light(2 * source.nbytes / samples["copy"].median_ms * 1e3, 2 * side**3 / samples["product"].median_ms * 1e3)
    return light, {
        "bandwidth_bytes_per_s": light.bandwidth_bytes_per_s,
        "flops_per_s": light.flops_per_s,
        "copy_bytes": source.nbytes,
        "matrix_side": side,
        "samples": {name: sample.as_json() for name, sample in samples.items()},
    }
