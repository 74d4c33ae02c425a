"""The commands of `semspec`, a module each with `run(arguments) -> int`; what they can be told is in `options`."""
