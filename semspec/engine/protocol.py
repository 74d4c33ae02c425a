"""What every engine that runs a causal LM offers: the roles of `semspec.decoding.protocols`, and a way to stop."""

from typing import Protocol

from semspec.decoding.protocols import Target


class Engine(Target, Protocol):
    """A model that can write and read. Served as draft or as target: the difference is the weights."""

    async def aclose(self) -> None:
        """Cancel what runs and free the model. Later calls raise Unavailable."""
        ...
