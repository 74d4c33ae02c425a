"""From a model pair to probes, in stages with files between them:

    contexts -> samples -> clusters -> labels -> probes (with metrics)

Each stage reads a folder's files, writes its own atomically, and skips what is already there.
"""
