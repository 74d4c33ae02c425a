"""From a model pair to probes, in stages with files between them:

    questions -> contexts -> samples -> clusters -> labels -> probes -> report

`data` makes labelled segments, `clustering` decides which of them mean the same, `trainer` learns from them,
`evaluation` says whether to serve what was learned; `report` holds what its pages and the bench's are made of. Each
stage writes its own files whole or not at all, and skips what is there.
"""
