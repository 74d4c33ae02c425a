"""Decoding strategies: async algorithms that choose which model writes each segment, over three protocols."""

from semspec.decoding.backends import Backends
from semspec.decoding.exact_answer import next_strategy
from semspec.decoding.generation import Generation, Options, RetrievalOptions, Strategies, Strategy
from semspec.decoding.loop import (
    PREFERRED,
    STRATEGIES,
    Prompts,
    align_reasoning,
    decode,
    render_prompts,
    renders_separately,
)
from semspec.protocols import Drafter, Target, Verifier

__all__ = [
    "PREFERRED", "STRATEGIES", "Backends", "Drafter", "Generation", "Options", "Prompts", "RetrievalOptions",
    "Strategies", "Strategy", "Target", "Verifier", "align_reasoning", "decode", "next_strategy", "render_prompts",
    "renders_separately",
]  # fmt: skip
