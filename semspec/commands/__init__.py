"""The commands of `semspec`, one module each with `run(arguments) -> int`; their options are in `options`."""
