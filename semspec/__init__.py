"""SemanticSpec as a serving system: accept a draft model's reasoning by its meaning.

For notebooks: `Gateway` is a client of the REST API, whose `ask` returns an `Answer` with its trace; `Stack` starts all
services here; `decode` runs a `Generation`, with a strategy of `STRATEGIES`, over any `Backends`. A name loads its
module when it is first used, so that a client needs no torch.
"""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"

_NAMES = {
    "semspec.client": ("Answer", "Gateway"),
    "semspec.decoding": ("STRATEGIES", "Backends", "Generation", "Options", "Strategy", "decode"),
    "semspec.errors": ("SemspecError",),
    "semspec.records": ("SegmentTrace",),
    "semspec.stack": ("Stack", "StackConfig"),
    "semspec.types": ("Finished", "Judgement", "SamplingParams", "Segment", "SegmentRecord"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = [*_MODULES]  # their types are in __init__.pyi


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
