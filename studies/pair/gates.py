"""`python -m studies.pair.gates`: whether the pair is what the study needs.

Answers of both models, greedy and sampled; corrections of planted mistakes; grades; cost a token.
"""

import argparse
import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from transformers import PreTrainedTokenizerBase, Qwen2ForCausalLM

from semspec.engine.causal_lm import CausalLM
from semspec.engine.conversation import render
from semspec.engine.torch_engine import TorchEngine
from semspec.types import Context, Conversation, GenerationParams, SamplingParams, Writer
from semspec_bench.spec_reason import TURNS, turn_after
from semspec_demo.documents import DELIMITER, write_document
from semspec_demo.problems import SPLITS, Problem, boxed, make_problem
from semspec_demo.reading import read
from semspec_demo.solutions import UNREADABLE, Solution
from semspec_demo.tokenizer import build_tokenizer

TOKENIZER = build_tokenizer()
MODELS = Path("examples/demo/semspec_demo/pair")


def load(role: str, models: Path) -> Qwen2ForCausalLM:
    """A trained model, in float32."""
    return Qwen2ForCausalLM.from_pretrained(models / role, dtype=torch.float32).eval()


def prompt_of(problem: Problem) -> str:
    messages = [{"role": "user", "content": problem.question}]
    return str(TOKENIZER.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


@torch.no_grad()
def answers(
    model: Qwen2ForCausalLM, problems: list[Problem], temperature: float, seed: int = 0
) -> list[list[str]]:
    """The segments of one answer to each problem."""
    torch.manual_seed(seed)
    found: list[list[str]] = []
    for first in range(0, len(problems), 50):
        prompts = [prompt_of(problem) for problem in problems[first : first + 50]]
        batch = TOKENIZER(
            prompts,
            return_tensors="pt",
            padding=True,
            padding_side="left",
            add_special_tokens=False,
        )
        sampling = (
            {"do_sample": True, "temperature": temperature, "top_k": 0}
            if temperature
            else {"do_sample": False}
        )
        out = model.generate(
            input_ids=batch.input_ids, attention_mask=batch.attention_mask, max_new_tokens=400,
            pad_token_id=TOKENIZER.pad_token_id, eos_token_id=TOKENIZER.eos_token_id, **sampling,
        )  # fmt: skip
        texts = TOKENIZER.batch_decode(out[:, batch.input_ids.shape[1] :], skip_special_tokens=True)
        found += [text.split(DELIMITER) for text in texts]
    return found


@dataclass(frozen=True, slots=True)
class Judged:
    """A segment of an answer, where it stands and whether it is right."""

    problem: Problem
    before: tuple[str, ...]
    text: str
    is_right: bool
    kinds: str


def judge(problem: Problem, segments: Sequence[str]) -> tuple[list[Judged], bool]:
    """Each segment as far as the answer can be followed, and whether the boxed answer is right, as a client sees it."""
    is_right = boxed(segments[-1]) == str(problem.answer)
    solution, judged = Solution(problem.facts), list[Judged]()
    for index, segment in enumerate(segments):
        step = read(segment, problem.facts, solution.holder)
        kinds = ["unreadable"] if step == UNREADABLE else [str(claim[0]) for claim in step.claims]
        if step.corrects:
            kinds = ["No", *kinds]
        if step.claims[0][0] == "move":
            kinds.append(str(step.claims[0][1]))
        judged.append(
            Judged(
                problem, tuple(segments[:index]), segment, solution.is_right(step), " ".join(kinds)
            )
        )
        if step.claims[0][0] == "answer" or not solution.advance(step):
            break
    return judged, is_right


@torch.no_grad()
def corrections(model: Qwen2ForCausalLM, seeds: range) -> dict[str, float]:
    """Shares of planted mistakes that the next segment's first token calls wrong, and of right steps that it does."""
    no, so = (TOKENIZER.encode(word, add_special_tokens=False)[0] for word in ("No", "So"))
    flags: dict[str, list[bool]] = {}
    for seed in seeds:
        document = write_document(seed, planted=0.3)
        solution = Solution(document.problem.facts)
        ids = TOKENIZER.encode(prompt_of(document.problem), add_special_tokens=False)
        positions: list[tuple[int, str]] = []
        for step, segment in zip(document.steps[:-1], document.segments[:-1], strict=True):
            kind = str(step.claims[0][0]) + (
                str(step.claims[0][1]) if step.claims[0][0] == "move" else ""
            )
            is_right = solution.is_right(step)
            assert solution.advance(step)
            ids += TOKENIZER.encode(segment + DELIMITER, add_special_tokens=False)
            positions.append(
                (len(ids) - 1, f"{'right' if is_right else 'wrong'} {kind if not is_right else ''}")
            )
        logits = model(input_ids=torch.tensor([ids])).logits[0].float()
        for position, name in positions:
            flags.setdefault(name, []).append(bool(logits[position, no] > logits[position, so]))
    wrong = [flag for name, marks in flags.items() if name.startswith("wrong") for flag in marks]
    found = {"corrects": float(np.mean(wrong)), "flags_right": float(np.mean(flags["right "]))}
    return found | {name: round(float(np.mean(marks)), 3) for name, marks in sorted(flags.items())}


def grading_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the tokens between a step and its grade."""
    ids: list[int] = tokenizer.encode(
        turn_after(render(tokenizer, Conversation(TURNS), "the pair")), add_special_tokens=False
    )
    return ids


@torch.no_grad()
def grades(model: Qwen2ForCausalLM, judged: list[Judged]) -> float:
    """AUROC of the expected grade against truth."""
    turn = grading_ids(TOKENIZER)
    digits = [TOKENIZER.encode(str(digit), add_special_tokens=False)[0] for digit in range(10)]
    scores: list[float] = []
    for segment in judged:
        text = prompt_of(segment.problem) + "".join(
            segment + DELIMITER for segment in (*segment.before, segment.text)
        )
        ids = TOKENIZER.encode(text, add_special_tokens=False) + turn
        logits = model(input_ids=torch.tensor([ids])).logits[0, -1].float()
        scores.append(float(logits[digits].softmax(-1) @ torch.arange(10.0)))
    return float(roc_auc_score([segment.is_right for segment in judged], scores))


async def token_cost(model: Path, problems: list[Problem]) -> float:
    """CPU seconds a token of our engine in this process, of greedy answers, prompts included."""
    engine = TorchEngine(CausalLM.load(str(model), None, "cpu", "auto"), Writer.TARGET, 1 << 28)
    params = GenerationParams(SamplingParams(0.0), max_segments=0, max_tokens=150)
    contexts = [Context((await engine.encode(prompt_of(problem)),)) for problem in problems]
    began = time.process_time()
    written = [
        generated for context in contexts async for generated in engine.generate(context, params)
    ]
    return (time.process_time() - began) / sum(
        len(generated.segment.token_ids) for generated in written
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", type=Path, default=MODELS)
    parser.add_argument("--limit", type=int, default=200)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    models = {role: load(role, arguments.models) for role in ("target", "draft")}
    problems = [make_problem(seed) for seed in SPLITS["tune"][: arguments.limit]]
    result: dict[str, object] = {}
    for role, model in models.items():
        for temperature in (0.0, 0.6):
            found = [
                judge(p, a)
                for p, a in zip(problems, answers(model, problems, temperature), strict=True)
            ]
            wrong = Counter(
                segment.kinds for judged, _ in found for segment in judged if not segment.is_right
            )
            steps = Counter(segment.kinds for judged, _ in found for segment in judged)
            result[f"{role} {temperature}"] = {
                "right": float(np.mean([is_right for _, is_right in found])),
                "wrong steps": {name: f"{n}/{steps[name]}" for name, n in wrong.most_common(12)},
            }
    result["corrections"] = corrections(models["target"], SPLITS["tune"][: arguments.limit])
    target, draft = (
        asyncio.run(token_cost(arguments.models / role, problems[:10])) for role in models
    )
    result["cost ratio"] = target / draft
    written = zip(problems, answers(models["draft"], problems, 0.6), strict=True)
    drafted = [segment for problem, answer in written for segment in judge(problem, answer)[0]]
    result["grades"] = grades(models["target"], drafted)
    print(json.dumps(result, indent=1), flush=True)


if __name__ == "__main__":
    main()
