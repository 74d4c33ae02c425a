"""The demo language, and the recipe of the bundled model pair and its probes."""
