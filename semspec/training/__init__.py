"""Trains the probes of a model pair, in stages that pass files to each other:

    questions -> contexts -> samples -> clusters -> labels -> probes -> report

`data` makes labelled segments, `trainer` fits the probes, `evaluation` decides whether they are good enough to serve.
Each stage writes its files atomically and skips those that exist.
"""
