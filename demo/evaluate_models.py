"""Evaluates each bundled model alone: pass@1 on held-out problems.

python -m semspec.demo.evaluate_models            500 `report` problems, writes bench/results/pass_at_1.json
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase, Qwen2ForCausalLM

from semspec.demo.client import boxed
from semspec.demo.problems import SPLITS, make_problem
from semspec.engine.checkpoint import load_tokenizer
from semspec.stack import BUNDLED_PAIR

BATCH_SIZE = 50


@torch.no_grad()
def pass_at_1(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerBase, seeds: Sequence[int]) -> float:
    """Share of problems answered correctly with one sample each, T 0.6, top_p 0.95."""
    torch.manual_seed(0)
    num_right = 0
    for start in range(0, len(seeds), BATCH_SIZE):
        problems = [make_problem(seed) for seed in seeds[start : start + BATCH_SIZE]]
        chats = [[{"role": "user", "content": problem.question}] for problem in problems]
        prompts = [tokenizer.apply_chat_template(chat, tokenize=False) for chat in chats]
        inputs = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left", return_token_type_ids=False)
        output = model.generate(**inputs, do_sample=True, temperature=0.6, top_p=0.95, top_k=0, max_new_tokens=400)
        texts = tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :])
        num_right += sum(boxed(text) == str(p.answer) for p, text in zip(problems, texts, strict=True))
    return num_right / len(seeds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pair", type=Path, default=BUNDLED_PAIR)
    parser.add_argument("--problems", type=int, default=500)
    parser.add_argument("--output", type=Path, default=Path("bench/results/pass_at_1.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    result: dict[str, object] = {"num_problems": arguments.problems, "temperature": 0.6, "top_p": 0.95}
    for role in ("draft", "target"):
        model = Qwen2ForCausalLM.from_pretrained(arguments.pair / role, dtype=torch.float32).eval()
        tokenizer = load_tokenizer(str(arguments.pair / role))
        share = pass_at_1(model, tokenizer, SPLITS["report"][: arguments.problems])
        error = (share * (1 - share) / arguments.problems) ** 0.5
        result[role] = {"pass_at_1": round(share, 4), "standard_error": round(error, 4)}
    arguments.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
