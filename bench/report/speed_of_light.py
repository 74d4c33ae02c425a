"""Speed of light: lower bounds of decoding and scoring on this machine, from its memory bandwidth and matrix
throughput, beside the measured costs in `cost.json`."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from safetensors import safe_open
from torch.utils.benchmark import Timer

from semspec.errors import InvalidRequest
from semspec.training.report.document import Table

COST_COMMAND = "python -m semspec.bench.cost"
_READ = re.compile(r"(draft|target)_read_(\d+)_ms")
NUM_TRIES = 5
VECTOR_SIDE, MATRIX_SIDE = 8192, 1024
BYTES = {"fp32": 4, "bf16": 2}


@dataclass(frozen=True, slots=True)
class Machine:
    """Measured peak rates of one thread."""

    bandwidth_bytes_per_s: float
    """Reading weights from main memory, in a matrix-vector product."""
    flops_per_s: float
    """fp32 multiplications and additions, in a matrix product."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The parameters that every token needs; an embedding table does not count."""

    num_parameters: int

    def floor_ms(self, machine: Machine, num_tokens: int, kind: str) -> float:
        """Lower bound of a forward over `num_tokens` tokens: all weights are read and multiplied with each token.

        `kind` is `fp32` or `bf16`. Attention and its cache are left out, so the floor is lower still for long contexts.
        """
        read_s = self.num_parameters * BYTES[kind] / machine.bandwidth_bytes_per_s
        multiply_s = 2 * self.num_parameters * num_tokens / machine.flops_per_s
        return 1e3 * max(read_s, multiply_s)


def weights_of(checkpoint: Path) -> Weights:
    """Sizes from the safetensors files' headers. Tied embeddings count, since they are also the output layer."""
    sizes: dict[str, int] = {}
    for path in sorted(checkpoint.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            sizes |= {name: prod(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    untied = any(name.endswith("lm_head.weight") for name in sizes)
    return Weights(sum(size for name, size in sizes.items() if not (untied and name.endswith("embed_tokens.weight"))))


def measure_machine() -> Machine:
    """Measure the peak rates with one thread in about two seconds: the best of a few tries, since load slows it."""
    weights, vector = torch.ones(VECTOR_SIDE, VECTOR_SIDE), torch.ones(VECTOR_SIDE)  # zeros share one page
    left, right = torch.rand(MATRIX_SIDE, MATRIX_SIDE), torch.rand(MATRIX_SIDE, MATRIX_SIDE)
    reading_s = _fastest_s("torch.mv(a, b)", weights, vector)
    return Machine(weights.nbytes / reading_s, 2 * MATRIX_SIDE**3 / _fastest_s("torch.mm(a, b)", left, right))


def _fastest_s(product: str, a: torch.Tensor, b: torch.Tensor) -> float:
    """Shortest time of a product of `a` and `b`; the timer warms up before each try."""
    timer = Timer(product, globals={"a": a, "b": b}, num_threads=1)
    return float(min(timer.timeit(1).mean for _ in range(NUM_TRIES)))


@dataclass(frozen=True, slots=True)
class Forward:
    """One forward of one model."""

    role: str
    num_tokens: int
    is_decode: bool
    duration_ms: float

    @property
    def title(self) -> str:
        return f"{self.role}: a decoded token" if self.is_decode else f"{self.role}: reading {self.num_tokens} tokens"


@dataclass(frozen=True, slots=True)
class SpeedOfLight:
    machine: Machine
    weights: Mapping[str, Weights]
    """By role."""
    measured: tuple[Forward, ...]

    def sentence(self) -> str:
        sizes = ", ".join(
            f"{role} {weights.num_parameters / 1e6:.2f} million parameters "
            f"({' / '.join(f'{weights.num_parameters * size / 1e6:.1f} MB {kind}' for kind, size in BYTES.items())})"
            for role, weights in self.weights.items()
        )
        return (
            f"One thread here reads {self.machine.bandwidth_bytes_per_s / 1e9:.1f} GB/s from main memory and computes "
            f"{self.machine.flops_per_s / 1e9:.0f} GFLOP/s in fp32. The pair: {sizes}. A forward cannot take less than "
            "reading all weights once, nor than multiplying each with every token (at fp32's rate in both columns). "
            "Attention and its cache are left out. A model that fits the processor's caches may be read faster."
        )

    def table(self) -> Table:
        header = ("forward", "measured ms", *(f"floor {kind} ms" for kind in BYTES), "measured / fp32 floor")
        return Table(header, tuple(self._row(one) for one in self.measured))

    def _row(self, one: Forward) -> tuple[str, ...]:
        weights = self.weights[one.role]
        floors = {kind: weights.floor_ms(self.machine, one.num_tokens, kind) for kind in BYTES}
        ratio = f"{one.duration_ms / floors['fp32']:.1f}"
        return one.title, f"{one.duration_ms:.3f}", *(f"{floor:.3f}" for floor in floors.values()), ratio


def read_cost(path: Path) -> SpeedOfLight:
    """Raises: InvalidRequest when the file is not from `python -m semspec.bench.cost`, or is too old."""
    try:
        found = json.loads(path.read_text())
        return SpeedOfLight(
            machine=Machine(**found["machine"]),
            weights={role: Weights(**own) for role, own in found["weights"].items()},
            measured=tuple(_forwards(found["medians"])),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(
            f"{path} does not tell the machine's speed ({type(error).__name__}: {error}); "
            f"make it anew with `{COST_COMMAND}`",
            "cost",
        ) from None


def _forwards(medians: Mapping[str, float]) -> Iterator[Forward]:
    for name, duration_ms in medians.items():
        if name.endswith("_decode_ms_per_token"):
            yield Forward(name.split("_")[0], 1, True, duration_ms)
        elif match := _READ.fullmatch(name):
            yield Forward(match[1], int(match[2]), False, duration_ms)
