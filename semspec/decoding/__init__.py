"""Decoding strategies: async algorithms that choose which model writes each segment, over three protocols."""

from semspec.decoding.generation import Generation, Options, RetrievalOptions, Strategies, Strategy
from semspec.decoding.loop import STRATEGIES, decode
from semspec.decoding.prompts import Prompts, prompts_of
from semspec.decoding.protocols import Backends, Drafter, Target, Verifier

__all__ = [
    "STRATEGIES", "Backends", "Drafter", "Generation", "Options", "Prompts", "RetrievalOptions", "Strategies",
    "Strategy", "Target", "Verifier", "decode", "prompts_of",
]  # fmt: skip
