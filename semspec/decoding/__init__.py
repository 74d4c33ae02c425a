"""Decoding strategies: async algorithms that choose which model writes each segment, over three protocols."""

from semspec.decoding.backends import Backends
from semspec.decoding.generation import Generation, Options, RetrievalOptions, Strategies, Strategy
from semspec.decoding.loop import (
    PREFERRED,
    STRATEGIES,
    Prompts,
    at_the_same_point,
    decode,
    prompts_of,
    renders_its_own,
)
from semspec.protocols import Drafter, Target, Verifier

__all__ = [
    "PREFERRED", "STRATEGIES", "Backends", "Drafter", "Generation", "Options", "Prompts", "RetrievalOptions",
    "Strategies", "Strategy", "Target", "Verifier", "at_the_same_point", "decode", "prompts_of", "renders_its_own",
]  # fmt: skip
