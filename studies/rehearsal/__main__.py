"""Rehearsals of the whole stack on a CPU; each writes its results to results/.

python -m studies.rehearsal shapes        two layers of the true configurations, every kind of request
python -m studies.rehearsal depth         four answers of 30,000 tokens at once, with kills
python -m studies.rehearsal reproduce     the pipeline and the paper's comparison over the models of `shapes`
"""

import argparse
import asyncio
from pathlib import Path

from semspec.stack import StackError
from studies.rehearsal.depth import depth
from studies.rehearsal.reproduce import reproduce
from studies.rehearsal.shapes import shapes

MODELS = Path(".work/rehearsal/models")
"""Checkpoints of true shapes, 6 GB, kept between runs."""
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m studies.rehearsal",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("rehearsal", choices=("shapes", "depth", "reproduce"))
    parser.add_argument("--engine", choices=("fast", "vllm"), default="fast", help="of both models")
    parser.add_argument("--tokens", type=int, default=30_000, help="of each answer of `depth`")
    parser.add_argument("--questions", type=int, default=1, help="of each task of `reproduce`")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder for the results")
    chosen = parser.parse_args()
    try:
        if chosen.rehearsal == "depth":
            asyncio.run(depth(chosen.engine, chosen.tokens, chosen.output))
        elif chosen.rehearsal == "shapes":
            asyncio.run(shapes(chosen.engine, chosen.output, MODELS))
        else:
            reproduce(work := MODELS.with_name("reproduce"), MODELS, chosen.questions)
            parts = [
                f"# {path.stem}\n\n{path.read_text()}"
                for path in sorted((work / "report").glob("*.md"))
            ]
            (chosen.output / "reproduce.md").write_text("\n".join(parts))
    except StackError as error:
        raise SystemExit(f"{error.log_tail}\n{error}") from error


if __name__ == "__main__":
    main()
