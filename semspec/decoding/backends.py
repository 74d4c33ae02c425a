"""Who plays the three roles."""

from dataclasses import dataclass

from semspec.decoding.protocols import Drafter, Target, Verifier


@dataclass(frozen=True, slots=True)
class Backends:
    """The players of one generation: engines, clients or fakes."""

    drafter: Drafter
    target: Target
    verifier: Verifier
