"""Evaluates each model of the pair alone on held-out problems: answers, segments, cue words, and grades of steps.

python -m semspec.demo.evaluate_models       500 `report` problems, writes bench/results/pass_at_1.json
"""

import argparse
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

import torch
from sklearn.metrics import roc_auc_score
from transformers import PreTrainedTokenizerBase, Qwen2ForCausalLM

from semspec.decoding.spec_reason import DIGITS, PREFILL, QUESTION
from semspec.decoding.spec_thinking import Rules
from semspec.demo.client import boxed
from semspec.demo.documents import DELIMITER, write_graded
from semspec.demo.problems import SPLITS, Problem, make_problem
from semspec.demo.wording import DRAFT_AUTHOR
from semspec.engine.checkpoint import load_tokenizer
from semspec.engine.tokenization import option_ids, turn_after

log = logging.getLogger("semspec.demo.evaluate_models")

BATCH_SIZE = 50
MAX_TOKENS = 512
NUM_GRADED = 400


@dataclass(frozen=True, slots=True)
class Written:
    """A model's answer to one problem."""

    problem: Problem
    text: str

    @property
    def is_right(self) -> bool:
        return boxed(self.text) == str(self.problem.answer)


def write(
    model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerBase, seeds: Sequence[int], temperature: float
) -> list[Written]:
    """One answer to each problem, top_p 0.95."""
    torch.manual_seed(0)
    written: list[Written] = []
    for start in range(0, len(seeds), BATCH_SIZE):
        problems = [make_problem(seed) for seed in seeds[start : start + BATCH_SIZE]]
        prompts = [prompt_of(tokenizer, problem) for problem in problems]
        inputs = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left", return_token_type_ids=False)
        drawn = {"temperature": temperature, "top_p": 0.95, "top_k": 0} if temperature else {}
        output = model.generate(**inputs, do_sample=bool(temperature), max_new_tokens=MAX_TOKENS, **drawn)
        texts = tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        written += map(Written, problems, texts)
    return written


def prompt_of(tokenizer: PreTrainedTokenizerBase, problem: Problem) -> str:
    """The chat of one question, up to the first segment."""
    chat = [{"role": "user", "content": problem.question}]
    return str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))


@dataclass(frozen=True, slots=True)
class Summary:
    """Answers of one model at one temperature."""

    pass_at_1: float
    standard_error: float
    by_domain: dict[str, float]
    num_segments: float
    """Mean per answer."""
    answers_with_cue_words: float
    """Share of answers that hold a negative or verify cue word of Speculative Thinking."""


def summarised(written: Sequence[Written]) -> Summary:
    """The summary of these answers."""
    share = mean(answer.is_right for answer in written)
    domains = sorted({answer.problem.domain for answer in written})
    rules = Rules()
    cues = rules.negative_words + rules.verify_words
    return Summary(
        round(share, 4),
        round((share * (1 - share) / len(written)) ** 0.5, 4),
        {d: round(mean(a.is_right for a in written if a.problem.domain == d), 4) for d in domains},
        round(mean(answer.text.count(DELIMITER) + 1 for answer in written), 2),
        round(mean(any(cue in answer.text.lower() for cue in cues) for answer in written), 4),
    )


@torch.no_grad()
def grading_auroc(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerBase, seeds: Sequence[int]) -> float:
    """AUROC of the expected grade, 0 to 9, between right and wrong steps in the draft's wording."""
    digits = option_ids(tokenizer, DIGITS)
    turn = turn_after(tokenizer, QUESTION, PREFILL)
    grades, is_right = [], []
    for seed in seeds:
        graded = write_graded(seed, DRAFT_AUTHOR)
        text = prompt_of(tokenizer, graded.problem) + graded.text
        ids = torch.tensor([tokenizer.encode(text, add_special_tokens=False) + turn])
        shares = torch.softmax(model(ids).logits[0, -1, digits], -1)
        grades.append(float((shares * torch.arange(10)).sum()))
        is_right.append(graded.grade > 4)
    return float(roc_auc_score(is_right, grades))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pair", type=Path, default=Path("demo/pair"))
    parser.add_argument("--problems", type=int, default=500)
    parser.add_argument("--split", choices=sorted(SPLITS), default="report")
    parser.add_argument("--output", type=Path, default=Path("bench/results/pass_at_1.json"))
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    seeds = SPLITS[arguments.split][: arguments.problems]
    result: dict[str, object] = {"num_problems": arguments.problems, "split": arguments.split, "top_p": 0.95}
    for role in ("draft", "target"):
        model = Qwen2ForCausalLM.from_pretrained(arguments.pair / role, dtype=torch.float32).eval()
        tokenizer = load_tokenizer(str(arguments.pair / role))
        rows: dict[str, object] = {
            name: asdict(summarised(write(model, tokenizer, seeds, temperature)))
            for name, temperature in (("greedy", 0.0), ("temperature_0.6", 0.6))
        }
        rows["grading_auroc"] = round(grading_auroc(model, tokenizer, seeds[:NUM_GRADED]), 4)
        result[role] = rows
        log.info("%s %s", role, json.dumps(rows))
    arguments.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
