"""From labelled segments to probes, whether or not they fit in memory."""
