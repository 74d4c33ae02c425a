"""The roles of `semspec.decoding.protocols`, played by several replicas of a service each.

places.py finds the replicas, replica.py watches over one, choice.py picks one for a call, pool.py keeps them together,
roles.py speaks for them.
"""

from semspec.rpc.pool.backends import PooledDrafter, PooledRole, PooledTarget, PooledVerifier
from semspec.rpc.pool.replica import PoolOptions

__all__ = ["PoolOptions", "PooledDrafter", "PooledRole", "PooledTarget", "PooledVerifier"]
