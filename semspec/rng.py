"""How tokens are drawn: every draw has a name, so that it can be repeated."""

import hashlib
import struct
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 switch those filters off."""

    temperature: float = 0.6
    top_p: float = 0.95
    top_k: int = 0
    seed: int = 0
    """Names the stream of draws: token number t of a context is drawn with `uniform(seed, "token", t)`."""


def derive_seed(seed: int, purpose: str, position: int) -> int:
    """A 64-bit seed for one named use of a request's randomness."""
    return int.from_bytes(_digest(seed, purpose, position), "little")


def uniform(seed: int, purpose: str, position: int) -> float:
    """The draw in [0, 1) that this name denotes, the same on every machine and every retry."""
    return (int.from_bytes(_digest(seed, purpose, position), "little") >> 11) / (1 << 53)


def _digest(seed: int, purpose: str, position: int) -> bytes:
    return hashlib.blake2b(struct.pack("<Qq", seed, position) + purpose.encode(), digest_size=8).digest()
