"""The commands of `semspec`, one module each with `run(arguments) -> int`; their options are in `options`."""

INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells."""
