"""The commands of `semspec`, one module each with `run(arguments) -> int`; their options are in `options`."""

INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells."""
BUNDLED = "semspec-demo"
"""The default name of a pair in the API, as a gateway of the bundled pair has it."""
EXAMPLE = (
    "Ben has coins: 52. Day 1: Ben finds 9 coins. Day 2: Ben naps. Day 3: Ben sells 4 coins. Day 4: Ben gets 6 coins. "
    "Day 5: Ben reads. Day 6: Ben loses 7 coins. How many coins does Ben have now?"
)
"""A question of the kind that the bundled pair answers."""
BAD_VERDICT = (
    "compare answers with those of the strategy 'target' before you rely on them, or train on more questions "
    "(`semspec train run`)"
)
"""The remedy of probes that are not good enough."""
KNOWN = (
    "The bundled pair knows two kinds of questions, counts over six to nine days and boxes over six to nine moves, "
    "worded as in the example; to any other it writes digits."
)
