"""The demo language, and the training of the bundled model pair and its probes."""
