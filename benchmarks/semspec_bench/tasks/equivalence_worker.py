"""Run as a file: read [reference, text] from each line of stdin, write whether they are the same mathematics.

`python -P equivalence_worker.py` writes `ready` first. It imports nothing of ours.
"""

import json
import logging
import sys
import warnings

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

STATED = (
    LatexExtractionConfig(try_extract_without_anchor=False, boxed_match_priority=0),
    ExprExtractionConfig(try_extract_without_anchor=False),
)
"""Only boxed or explicitly stated answers count; by default, the last number of truncated reasoning would."""


def is_equivalent(reference: str, text: str) -> bool:
    """Time limits are math-verify's own; an answer that makes it fail is wrong."""
    try:
        return bool(verify(parse(f"\\boxed{{{reference}}}"), parse(text, STATED)))
    except Exception:
        return False


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable()  # it logs the whole text on a timeout
    answers = sys.stdout
    sys.stdout = sys.stderr  # keeps other output out of the replies
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        reference, text = json.loads(line)
        print(json.dumps(is_equivalent(reference, text)), file=answers, flush=True)


if __name__ == "__main__":
    main()
