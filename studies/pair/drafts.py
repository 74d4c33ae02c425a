"""`python -m studies.pair.drafts`: answers of the trained draft to problems of `train`, from whose mistakes the target
learns. It goes on where it ended."""

import argparse
import json
from pathlib import Path

import torch

from semspec_demo.problems import make_problem
from studies.pair.gates import MODELS, answers, load

FIRST, AT_ONCE = 9_000_000, 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--file", type=Path, default=Path(".work/demo-models/drafts.jsonl"))
    parser.add_argument("--limit", type=int, default=6000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = load("draft", MODELS)
    arguments.file.parent.mkdir(parents=True, exist_ok=True)
    done = len(arguments.file.read_text().splitlines()) if arguments.file.exists() else 0
    for first in range(FIRST + done, FIRST + arguments.limit, AT_ONCE):
        problems = [make_problem(seed) for seed in range(first, first + AT_ONCE)]
        written = answers(model, problems, 0.6, seed=first)
        lines = [
            json.dumps([p.seed, segments]) + "\n"
            for p, segments in zip(problems, written, strict=True)
        ]
        with arguments.file.open("a") as file:
            file.writelines(lines)
        print(arguments.file, first + AT_ONCE - FIRST, flush=True)


if __name__ == "__main__":
    main()
