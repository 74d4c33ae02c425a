"""How a pool looks after its replicas."""

from dataclasses import dataclass, field

from semspec.rpc.clients import ClientOptions


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """How to call replicas, how often to look for them, and when to give one up."""

    client: ClientOptions = field(default_factory=ClientOptions)
    resolve_s: float = 5.0
    """Between looking up host names."""
    health_interval_s: float = 2.0
    """Between asking a replica for its health."""
    health_timeout_s: float = 5.0
    """Silence after which a replica is given up."""
