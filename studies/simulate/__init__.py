"""Discrete-event simulation of the serving system from step times.

The decoding loop and the choice of a replica are the served code; engines, network and verifier are simulated, in
virtual time.
"""
