"""Discrete-event simulation of the serving system, fed with tables of step times (`semspec_bench.pace.table`).

The decoding loop and the choice of a replica are the served code; engines, network and verifier are simulated, in
virtual time. Imports no torch.
"""
