"""Compares the numeric forms of a model's weights on a CPU: `python -m semspec_bench.numeric_forms MODEL.gguf`.

Accuracy is that of texts read in each form, relative to fp32. Speed is that of a prompt and of the tokens after it; the
forms take turns. `--llama-bench PATH` adds llama.cpp's own benchmark on the same file, with as many threads.
"""

import argparse
import gc
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from semspec.engine.causal_lm import CausalLM
from semspec.reporting.document import Table
from semspec.types import Message

FORMS = ("float32", "bfloat16", "packed")
RESULTS = Path("benchmarks/results/numeric-forms")
PROMPT_TOKENS, NEW_TOKENS = 100, 32
PROMPT_IDS = 1000, 20_000
"""Range of the random tokens of a prompt."""
READ_TOKENS = 2, 3, 4, 6, 8, 16, 32
"""Numbers of tokens that are read at once, after the prompt."""
TEXT_TOKENS = 96
"""Tokens of a text that are compared, after its prompt."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A text as one form reads it."""

    pooled: Tensor
    """Mean states of the text's tokens, `[num_layers + 1, hidden_size]`."""
    log_probabilities: Tensor
    """Log-probabilities of the text's tokens, `[num_tokens]`."""
    likeliest: Tensor
    """The most probable token at each position, `[num_tokens]`."""


def read_problems(path: Path, number: int) -> list[tuple[str, str]]:
    """Return problem and solution of the first lines of a file such as MATH-500's."""
    lines = path.read_text().splitlines()[:number]
    return [(record["problem"], record["solution"]) for record in map(json.loads, lines)]


def readings(lm: CausalLM, problems: Sequence[tuple[str, str]]) -> Iterator[Reading]:
    """Read each solution after its problem in the model's chat template."""
    for problem, solution in problems:
        prompt = lm.tokenizer.encode([Message("user", problem)]).token_ids
        text = lm.tokenizer.raw.encode(solution, add_special_tokens=False)[:TEXT_TOKENS]
        forward = lm.forward([*prompt, *text], lm.new_kv(), len(text) + 1, want_states=True)
        logits = forward.logits[:-1].float()
        tokens = torch.tensor(text)[:, None]
        log_probabilities = logits.log_softmax(-1).gather(1, tokens)[:, 0]
        yield Reading(
            forward.states[:, -len(text) :].float().mean(1), log_probabilities, logits.argmax(-1)
        )


def accuracy_row(form: str, found: Sequence[Reading], exact: Sequence[Reading]) -> list[str]:
    """Return the cells of a form: errors relative to fp32."""
    errors = torch.stack(
        [
            (a.pooled - b.pooled).norm(dim=1) / b.pooled.norm(dim=1)
            for a, b in zip(found, exact, strict=True)
        ]
    )  # [num_texts, num_layers + 1]
    pairs = list(zip(found, exact, strict=True))
    differences = torch.cat([(a.log_probabilities - b.log_probabilities).abs() for a, b in pairs])
    means = torch.stack(
        [(a.log_probabilities.mean() - b.log_probabilities.mean()).abs() for a, b in pairs]
    )
    agreement = torch.cat([(a.likeliest == b.likeliest).float() for a, b in pairs]).mean()
    return [
        form,
        f"{errors.median():.2%}",
        f"{errors.quantile(0.99):.2%}",
        f"{errors.max():.2%}",
        f"{differences.median():.3f}",
        f"{means.max():.3f}",
        f"{agreement:.2%}",
    ]


@dataclass(slots=True)
class Seconds:
    """Times of one form, an entry for each round."""

    first: list[float] = field(default_factory=list)
    """Seconds to the first token of a prompt."""
    token: list[float] = field(default_factory=list)
    """Seconds a token after it."""
    read: dict[int, list[float]] = field(default_factory=lambda: {n: [] for n in READ_TOKENS})
    """Seconds to read as many tokens at once as the key says."""


def speeds(models: dict[str, CausalLM], rounds: int) -> dict[str, Seconds]:
    """Time each form in turn, in each round with another prompt of random tokens."""
    times = {form: Seconds() for form in models}
    generator = torch.Generator().manual_seed(0)
    for _ in range(rounds):
        prompt = torch.randint(*PROMPT_IDS, (PROMPT_TOKENS,), generator=generator).tolist()
        for form, lm in models.items():
            kv, begin = lm.new_kv(), perf_counter()
            token = int(lm.forward(prompt, kv).logits[-1].argmax())
            times[form].first.append(perf_counter() - begin)
            begin = perf_counter()
            for _ in range(NEW_TOKENS):
                token = int(lm.forward([token], kv).logits[-1].argmax())
            times[form].token.append((perf_counter() - begin) / NEW_TOKENS)
            for number, read in times[form].read.items():
                begin = perf_counter()
                lm.forward(prompt[:number], kv, number)
                read.append(perf_counter() - begin)
    return times


def llama_times(command: Path, model: Path, rounds: int, num_threads: int) -> tuple[float, float]:
    """Return llama.cpp's median seconds to the first token and a token, by its `llama-bench`."""
    options = [
        "-p",
        str(PROMPT_TOKENS),
        "-n",
        str(NEW_TOKENS),
        "-t",
        str(num_threads),
        "-r",
        str(rounds),
        "-ngl",
        "0",
    ]
    run = subprocess.run(
        [command, "-m", model, *options, "-o", "json"], capture_output=True, text=True, check=True
    )
    prompt, decode = (median(record["samples_ns"]) / 1e9 for record in json.loads(run.stdout))
    return prompt, decode / NEW_TOKENS


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m semspec_bench.numeric_forms", description=__doc__
    )
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument(
        "--problems", type=Path, help="JSON lines with `problem` and `solution`, for accuracy"
    )
    parser.add_argument("--number", type=int, default=200, help="problems that are read")
    parser.add_argument("--rounds", type=int, default=0, help="rounds of the comparison of speed")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--forms", default=",".join(FORMS), help="forms to compare, with commas")
    parser.add_argument("--llama-bench", type=Path, help="llama.cpp's llama-bench, to compare with")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with torch.no_grad():
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    """Measure, print and write the tables; returns the exit status."""
    forms, parts = options.forms.split(","), []
    if options.problems:
        parts.append(
            _accuracy(options.model, forms, read_problems(options.problems, options.number))
        )
    if options.rounds:
        parts.append(
            _speed(options.model, forms, options.rounds, options.threads, options.llama_bench)
        )
    name = f"{Path(options.model).stem}-{options.threads}"
    RESULTS.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join([f"# {Path(options.model).name}, {options.threads} threads", *parts]) + "\n"
    (RESULTS / f"{name}{'-accuracy' if options.problems else ''}.md").write_text(text)
    print(text)
    return 0


def _accuracy(model: str, forms: Sequence[str], problems: Sequence[tuple[str, str]]) -> str:
    rows = list[list[str]]()
    exact = list[Reading]()
    for form in ["float32", *(form for form in forms if form != "float32")]:
        found = list(readings(CausalLM.load(model, None, "cpu", form), problems))
        gc.collect()
        if exact:
            rows.append(accuracy_row(form, found, exact))
            print(*rows[-1], file=sys.stderr, flush=True)
        else:
            exact = found
    columns = [
        "form",
        "states, median",
        "p99",
        "worst",
        "log-prob., median",
        "mean, worst",
        "agreement",
    ]
    words = (
        f"{len(problems)} texts, relative to fp32: states by text and layer, log-probabilities of tokens and their "
        "means by text, agreement of greedy tokens."
    )
    return f"{words}\n\n{Table(columns, rows).as_markdown()}"


def _speed(
    model: str, forms: Sequence[str], rounds: int, num_threads: int, llama_bench: Path | None
) -> str:
    models = {form: CausalLM.load(model, None, "cpu", form) for form in forms}
    speeds(models, 1)  # warm-up
    times = speeds(models, rounds)
    rows = [
        [form, *_cells(median(seconds.first), median(seconds.token))]
        for form, seconds in times.items()
    ]
    if llama_bench:
        models.clear()
        gc.collect()
        rows.append(
            ["llama.cpp", *_cells(*llama_times(llama_bench, Path(model), rounds, num_threads))]
        )
    columns = ["form", f"first token of {PROMPT_TOKENS}, s", "a token, ms", "tokens/s"]
    read = Table(
        ["ms to read tokens at once", *map(str, READ_TOKENS)],
        [
            [form, *(f"{1e3 * median(seconds):.1f}" for seconds in seconds.read.values())]
            for form, seconds in times.items()
        ],
    )
    speed = Table(columns, rows)
    return f"Medians of {rounds} rounds.\n\n{speed.as_markdown()}\n\n{read.as_markdown()}"


def _cells(first_s: float, token_s: float) -> list[str]:
    return [f"{first_s:.2f}", f"{1e3 * token_s:.1f}", f"{1 / token_s:.1f}"]


if __name__ == "__main__":
    sys.exit(main())
