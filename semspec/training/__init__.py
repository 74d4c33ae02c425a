"""Trains the probes of a model pair, in stages that pass files to each other:

    questions -> contexts -> samples -> clusters -> labels -> probes -> report

`data` makes labelled segments, `clustering` groups those with the same meaning, `trainer` fits the probes,
`evaluation` decides whether they are good enough to serve; `report` has the building blocks of its pages and the
bench's. Each stage writes its files atomically and skips those that exist.
"""
