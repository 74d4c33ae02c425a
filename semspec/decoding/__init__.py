"""Decoding strategies: async algorithms that choose which model writes each segment, over three protocols."""

from semspec.decoding.loop import STRATEGIES, Generation, decode, options
from semspec.decoding.prompts import Prompts, prompts_of
from semspec.decoding.protocols import Backends, Drafter, Target, Verifier
from semspec.decoding.strategy import Strategy

__all__ = [
    "STRATEGIES", "Backends", "Drafter", "Generation", "Prompts", "Strategy", "Target", "Verifier", "decode", "options",
    "prompts_of",
]  # fmt: skip
