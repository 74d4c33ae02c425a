"""Statistics of times, the device's peak rates, and the lower bounds of a step that follow from them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch

from semspec_bench.gpu.record import Facts
from semspec_bench.gpu.shapes import ELEMENT_BYTES, Scale, Shape

NUM_REPETITIONS = 20


def numbers(values: Sequence[float], digits: int = 3) -> Facts:
    """Statistics of at least one value."""
    found = {"median": median(values), "min": min(values), "max": max(values)}
    return {name: round(value, digits) for name, value in found.items()} | {"n": len(values)}


@dataclass(frozen=True, slots=True)
class PeakRates:
    """Measured peak rates of the device."""

    bandwidth_bytes_per_s: float
    flops_per_s: float
    """bf16 multiplications and additions."""

    def floor_ms(self, shape: Shape, row: Facts) -> float:
        """Lower bound of the work of a row: `streams` feed `tokens` each after `context` tokens, their own when they
        decode, otherwise the same. All weights but the embedding table, and all keys and values, are read once; each
        weight is multiplied with each token, each query with each key and value before it."""
        num_tokens = row["streams"] * row["tokens"]
        num_kept = row["context"] * (row["streams"] if row["what"] == "decode" else 1) + num_tokens
        num_weights = shape.num_body_parameters + shape.num_head_parameters
        read_bytes = ELEMENT_BYTES * num_weights + shape.kv_bytes_per_token * num_kept
        attention = (
            4
            * shape.num_layers
            * shape.hidden_size
            * num_tokens
            * (row["context"] + (row["tokens"] + 1) / 2)
        )
        num_logits = 1 if row["what"] == "prefill" else num_tokens
        products = 2 * (
            shape.num_body_parameters * num_tokens + shape.num_head_parameters * num_logits
        )
        return float(
            1e3
            * max(
                read_bytes / self.bandwidth_bytes_per_s, (products + attention) / self.flops_per_s
            )
        )


def with_floors(facts: Facts, shape: Shape, peaks: PeakRates) -> Facts:
    """Add to the times in `facts` their lower bound and its share of their median."""
    rows = []
    for row in facts["rows"]:
        if "ms" not in row:
            rows.append(row)
            continue
        floor_ms = peaks.floor_ms(shape, row)
        share = floor_ms / row["ms"]["median"]
        rows.append(row | {"floor_ms": round(floor_ms, 3), "share_of_floor": round(share, 3)})
    return facts | {"rows": rows}


def measure_peak_rates(scale: Scale, device: torch.device) -> Facts:
    """Measure the peak rates by a large copy (bytes read and written) and a product of square matrices; medians."""
    source = torch.ones(scale.copy_bytes, dtype=torch.uint8, device=device)
    copied, side = torch.empty_like(source), scale.matrix_side
    left, right = (torch.randn(side, side, device=device).bfloat16() for _ in range(2))
    product = torch.empty_like(left)
    copy_ms = _times_ms(device, lambda: copied.copy_(source))
    product_ms = _times_ms(device, lambda: torch.mm(left, right, out=product))
    return {
        "bandwidth_bytes_per_s": 2 * source.nbytes / median(copy_ms) * 1e3,
        "flops_per_s": 2 * side**3 / median(product_ms) * 1e3,
        "copy_bytes": source.nbytes,
        "matrix_side": side,
        "copy_ms": numbers(copy_ms, 5),
        "product_ms": numbers(product_ms, 5),
    }


def _times_ms(device: torch.device, work: Callable[[], object]) -> list[float]:
    """Durations of `work` with the wait for its end, after one to warm up."""
    times = []
    for _ in range(NUM_REPETITIONS + 1):
        start = perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append((perf_counter() - start) * 1e3)
    return times[1:]
