"""Step times computed from the shape of a model and the rates of a GPU.

The limit of a step is the time to read all weights and the keys and values of each sequence, or the time to multiply
each weight with each token, whichever is longer. To it come times by which steps of one H100 were measured to exceed
the limit (benchmarks/results/gpu-h100): a fixed time for launches, sampling and the host, a time for reads, and a
least time for steps larger than CUDA graphs. Single sequences take what was measured; many reads at once took up to
twice as long.
No step of two GPUs was measured: the all-reduces of tensor parallel 2 are assumed.
"""

from dataclasses import dataclass, replace

from semspec_bench.gpu.shapes import ELEMENT_BYTES, PAPER, Shape
from studies.simulate.times import StepTimes

SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TOKENS = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 384, 512, 768)
"""Tokens of a step, in addition to one of each sequence."""
GRAPH_TOKENS = 128
"""Tokens of the largest CUDA graph: vLLM's default for 64 requests a step."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates and times of a GPU in a step."""

    copy_bytes_per_s: float
    """Bandwidth of a large copy."""
    bandwidth_share: float
    """Share of the bandwidth that a step reaches."""
    flops_per_s: float
    """Rate of a large matrix product in bf16."""
    flops_share: float
    fixed_ms: float
    """Fixed time of each step: launches, sampling, the engine's host."""
    all_reduce_us: float
    """Latency of each of the two all-reduces of a layer, if GPUs share it."""
    link_bytes_per_s: float
    """Bandwidth between GPUs, for the data of all-reduces."""
    context_tokens: int
    """Tokens with keys and values of each sequence."""
    chunk_ms: float
    """Additional time of each step in which a sequence has more than one token."""
    eager_ms: float
    """Least time of a step of more than `GRAPH_TOKENS`, whose kernels are launched one by one."""


H100 = Rates(
    copy_bytes_per_s=3.02e12,
    bandwidth_share=0.82,
    flops_per_s=788e12,
    flops_share=0.7,
    fixed_ms=2.6,
    all_reduce_us=10.0,
    link_bytes_per_s=450e9,
    context_tokens=2048,
    chunk_ms=10.7,
    eager_ms=66.0,
)
"""The engine over vLLM with states: 28.6 ms a token of the 32B, 39.3 ms a read of 20 tokens, 66.1 ms one of 128. The
share of the bandwidth is what gpt-fast reaches when decoding; all-reduces and the link are assumptions."""
PLAIN = replace(H100, fixed_ms=1.0, eager_ms=0.0)
"""vLLM without states: 27.0 ms a token of the 32B."""


def step_ms(
    shape: Shape, rates: Rates, num_gpus: int, num_sequences: int, num_tokens: int
) -> float:
    """Return the time of a step with `num_tokens` tokens of `num_sequences` sequences, layers shared by `num_gpus`."""
    num_weights = shape.num_body_parameters + shape.num_head_parameters
    read_bytes = (
        ELEMENT_BYTES * num_weights
        + shape.kv_bytes_per_token * rates.context_tokens * num_sequences
    )
    attention = 4 * shape.num_layers * shape.hidden_size * rates.context_tokens
    read_s = read_bytes / (rates.copy_bytes_per_s * rates.bandwidth_share)
    products_s = (
        (2 * num_weights + attention) * num_tokens / (rates.flops_per_s * rates.flops_share)
    )
    shared_ms = 1e3 * max(read_s, products_s) / num_gpus + (
        rates.chunk_ms if num_tokens > num_sequences else 0.0
    )
    total_ms = shared_ms + rates.fixed_ms
    if num_gpus > 1:
        total_ms += _all_reduces_ms(shape, rates, num_tokens)
    return max(total_ms, rates.eager_ms) if num_tokens > GRAPH_TOKENS else total_ms


def _all_reduces_ms(shape: Shape, rates: Rates, num_tokens: int) -> float:
    data_s = ELEMENT_BYTES * shape.hidden_size * num_tokens / rates.link_bytes_per_s
    return 2 * shape.num_layers * (rates.all_reduce_us / 1e3 + 1e3 * data_s)


def fitted_times(shape: Shape, rates: Rates, num_gpus: int) -> StepTimes:
    """Return the step times of one model, to a microsecond."""
    return StepTimes(
        num_gpus,
        {
            number: [
                (extra, round(step_ms(shape, rates, num_gpus, number, number + extra), 3))
                for extra in (0, *TOKENS)
            ]
            for number in SEQUENCES
        },
    )


def drafting(token_ms: float) -> Rates:
    """Rates of an H100 that takes `token_ms` for a token of one sequence of the paper's draft."""
    rest_ms = token_ms - step_ms(PAPER.draft, replace(H100, fixed_ms=0.0), 1, 1, 1)
    return replace(H100, fixed_ms=round(rest_ms, 3), chunk_ms=6.5, eager_ms=17.8)
