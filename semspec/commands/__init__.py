"""The commands of `semspec`, one module each with `run(arguments) -> int`; their options are in `options`."""

INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells."""
BUNDLED = "semspec-demo"
"""The default name of a pair in the API, as a gateway of the bundled pair has it."""
EXAMPLE = (
    "Style 1. Bob passes to Gus. Ella passes to Ivy. Cora passes to Abel. Ivy passes to Bob. Hana passes "
    "to Karl. Karl passes to Cora. Abel passes to Ella. Gus passes to Hana. Cards: Ella 34, Cora 83, Karl"
    " 63, Hana 92, Abel 50, Ivy 45, Gus 21, Bob 74. The ball starts with Hana. Round 1: 2 passes. Round "
    "2: 1 pass. Round 3: 4 passes. Which card has the ball at the end?"
)
"""A question of the kind that the bundled pair answers."""
BAD_VERDICT = (
    "compare answers with those of the strategy 'target' before you rely on them, or train on more questions "
    "(`semspec train run`)"
)
"""The remedy of probes that are not good enough."""
KNOWN = (
    "The bundled pair knows one kind of question, a ball that is passed on in a ring of eight or nine, worded as in "
    "the example; to any other it says so."
)
