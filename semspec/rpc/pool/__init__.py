"""The replicas of a service.

resolver.py resolves their addresses, replica.py checks the health of one, pool.py selects one for each call.
"""
