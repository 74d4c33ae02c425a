"""Computes the tables of step times in `tables/`: `python -m semspec_bench.pace.roofline`.

The limit of a step is the time to read all weights and the keys and values of each sequence, or the time to multiply
each weight with each token, whichever is longer. To it come times by which steps of one H100 were measured to exceed
the limit (benchmarks/results/gpu-h100): a fixed time for launches, sampling and the host, a time for reads, and a
least time for steps larger than CUDA graphs. Single sequences take what was measured; many reads at once took up to
twice as long.
No step of two GPUs was measured: the all-reduces of tensor parallel 2 are assumed.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from semspec.reporting.files import replacing
from semspec_bench.gpu.shapes import ELEMENT_BYTES, PAPER, Shape
from semspec_bench.pace.table import FOLDER, HEADER

SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TOKENS = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 384, 512, 768)
"""Tokens of a step, beside one of each sequence."""
GRAPH_TOKENS = 128
"""Tokens of the largest CUDA graph: vLLM's default for 64 requests a step."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What a GPU reaches in a step."""

    device: str
    copy_bytes_per_s: float
    """Of a large copy."""
    bandwidth_share: float
    """Share of it that a step reaches."""
    flops_per_s: float
    """Of a large matrix product in bf16."""
    flops_share: float
    fixed_ms: float
    """Of each step: launches, sampling, the engine's host."""
    all_reduce_us: float
    """Of each of the two all-reduces of a layer, if GPUs share it."""
    link_bytes_per_s: float
    """Between GPUs, for the data of all-reduces."""
    context_tokens: int
    """Keys and values of each sequence."""
    chunk_ms: float
    """Of each step in which a sequence has more than a token."""
    eager_ms: float
    """The least of a step of more than `GRAPH_TOKENS`, whose kernels are launched one by one."""
    evidence: str


H100 = Rates(
    device="NVIDIA H100 SXM, 80 GB",
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
    evidence="copies, products, fixed time and reads are measured on one GPU (benchmarks/results/gpu-h100)",
)
"""The engine over vLLM with states: 28.6 ms a token of the 32B, 39.3 ms a read of 20 tokens, 66.1 ms one of 128. The
share of the bandwidth is what gpt-fast reaches when decoding; all-reduces and the link are assumptions."""
PLAIN = replace(
    H100,
    fixed_ms=1.0,
    eager_ms=0.0,
    evidence="copies, products and a token are measured on one GPU (benchmarks/results/gpu-h100)",
)
"""vLLM without states: 27.0 ms a token of the 32B."""


def step_ms(
    shape: Shape, rates: Rates, num_gpus: int, num_sequences: int, num_tokens: int
) -> float:
    """Time of a step with `num_tokens` tokens of `num_sequences` sequences, layers shared by `num_gpus`."""
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
    own_ms = (
        shared_ms
        + rates.fixed_ms
        + (_all_reduces_ms(shape, rates, num_tokens) if num_gpus > 1 else 0.0)
    )
    return max(own_ms, rates.eager_ms) if num_tokens > GRAPH_TOKENS else own_ms


def _all_reduces_ms(shape: Shape, rates: Rates, num_tokens: int) -> float:
    data_s = ELEMENT_BYTES * shape.hidden_size * num_tokens / rates.link_bytes_per_s
    return 2 * shape.num_layers * (rates.all_reduce_us / 1e3 + 1e3 * data_s)


def as_csv(shape: Shape, rates: Rates, num_gpus: int) -> str:
    """The table of one model."""
    return "\n".join(
        [*_head(shape, rates, num_gpus), ",".join(HEADER), *_rows(shape, rates, num_gpus), ""]
    )


def _head(shape: Shape, rates: Rates, num_gpus: int) -> Iterator[str]:
    yield f"# model: {shape.name}, bf16, {shape.num_layers} layers of {shape.hidden_size}, shapes only"
    yield f"# device: {rates.device}{f', tensor parallel {num_gpus}' if num_gpus > 1 else ''}"
    yield f"# num_gpus: {num_gpus}"
    yield (
        "# how: computed by benchmarks/semspec_bench/pace/roofline.py, the limit plus measured times; "
        f"{rates.evidence}"
    )
    yield (
        f"# bandwidth: {rates.bandwidth_share:.0%} of {rates.copy_bytes_per_s / 1e12:g} TB/s; all weights but the "
        "embedding table once a step, and keys and values"
    )
    yield f"# arithmetic: {rates.flops_share:.0%} of {rates.flops_per_s / 1e12:g} TFLOP/s; logits of every token"
    yield f"# context: {rates.context_tokens} tokens of keys and values a sequence, whatever its true length"
    yield f"# fixed: {rates.fixed_ms:g} ms a step for launches, sampling and the engine's host"
    if rates.chunk_ms:
        yield f"# reads: {rates.chunk_ms:g} ms a step in which a sequence has more than a token"
    if rates.eager_ms:
        yield f"# graphs: up to {GRAPH_TOKENS} tokens; a larger step takes at least {rates.eager_ms:g} ms"
    if num_gpus > 1:
        yield (
            f"# all-reduces: two a layer, {rates.all_reduce_us:g} us each and their data at "
            f"{rates.link_bytes_per_s / 1e9:g} GB/s; assumed, not measured"
        )
    yield "# left out: pooling of hidden states (about 0.05 ms a read of 40 tokens), swapping, prompts' attention"


def _rows(shape: Shape, rates: Rates, num_gpus: int) -> Iterator[str]:
    for num_sequences in SEQUENCES:
        for extra in (0, *TOKENS):
            num_tokens = num_sequences + extra
            yield f"{num_sequences},{num_tokens},{step_ms(shape, rates, num_gpus, num_sequences, num_tokens):.3f}"


def drafting(token_ms: float) -> Rates:
    """Rates of an H100 that takes `token_ms` for a token of one sequence of the paper's draft."""
    rest_ms = token_ms - step_ms(PAPER.draft, replace(H100, fixed_ms=0.0), 1, 1, 1)
    evidence = f"a token takes {token_ms:g} ms: 4.1 to 5.0 are measured, as are reads (benchmarks/results/gpu-h100)"
    return replace(H100, fixed_ms=round(rest_ms, 3), chunk_ms=6.5, eager_ms=17.8, evidence=evidence)


TABLES = {
    "h100-1.5b": (PAPER.draft, drafting(4.1), 1),
    "h100-32b": (PAPER.target, H100, 1),
    "h100-32b-tp2": (PAPER.target, H100, 2),
    "h100-32b-plain": (PAPER.target, PLAIN, 1),
    "h100-32b-plain-tp2": (PAPER.target, PLAIN, 2),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m semspec_bench.pace.roofline", description=__doc__)
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder of the tables")
    output = parser.parse_args(arguments).output
    for name, (shape, rates, num_gpus) in TABLES.items():
        with replacing(output / f"{name}.csv") as partial:
            partial.write_text(as_csv(shape, rates, num_gpus))


if __name__ == "__main__":
    main()
