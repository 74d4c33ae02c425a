"""Backends that distribute calls over the replicas of a service.

resolver.py resolves the addresses of replicas, replica.py checks the health of one, pool.py selects one for each call,
backends.py implements the protocols of `semspec.decoding.protocols`.
"""

from semspec.rpc.pool.backends import PooledDrafter, PooledRole, PooledTarget, PooledVerifier
from semspec.rpc.pool.replica import PoolOptions

__all__ = ["PoolOptions", "PooledDrafter", "PooledRole", "PooledTarget", "PooledVerifier"]
