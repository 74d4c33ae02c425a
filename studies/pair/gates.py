"""`python -m studies.pair.gates`: whether the pair is what the study needs, checked before any probe is trained.

Answers of both models, greedy and sampled; corrections of planted mistakes; grades; cost a token; and whether probes of
truth on states can beat a sequence model on token probabilities in the draft's own steps.
"""

import argparse
import json
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from torch import Tensor
from transformers import Qwen2ForCausalLM

from semspec.decoding.spec_reason import PREFILL, QUESTION
from semspec.demo.documents import DELIMITER
from semspec.demo.problems import SPLITS
from semspec.engine.conversation import turn_after
from studies.pair.language import NUM_STYLES, UNREADABLE, Problem, Solution, make_problem
from studies.pair.train import Learner, tokenizer_of_pair
from studies.pair.wording import MARK, read, write_document

TOKENIZER = tokenizer_of_pair()


def prompt_of(problem: Problem) -> str:
    messages = [{"role": "user", "content": problem.question}]
    return str(TOKENIZER.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


@torch.no_grad()
def answers(model: Qwen2ForCausalLM, problems: list[Problem], temperature: float, seed: int = 0) -> list[list[str]]:
    """The segments of one answer to each problem."""
    torch.manual_seed(seed)
    found: list[list[str]] = []
    for first in range(0, len(problems), 50):
        prompts = [prompt_of(problem) for problem in problems[first : first + 50]]
        batch = TOKENIZER(prompts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
        out = model.generate(
            input_ids=batch.input_ids, attention_mask=batch.attention_mask, max_new_tokens=320,
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
    kinds: tuple[str, ...]


def judge(problem: Problem, segments: list[str]) -> tuple[list[Judged], bool]:
    """Each segment as far as the answer can be followed, and whether the final answer is right."""
    solution, judged = Solution(problem.facts), list[Judged]()
    for index, segment in enumerate(segments):
        step = read(segment, problem.facts, solution.holder)
        kinds: tuple[str, ...] = (
            ("unreadable",) if step == UNREADABLE else tuple(str(claim[0]) for claim in step.claims)
        )
        if step.corrects:
            kinds = ("No", *kinds)
        if step.claims[0][:1] == ("move",):
            kinds = (*kinds, str(step.claims[0][1]))
        judged.append(Judged(problem, tuple(segments[:index]), segment, solution.is_right(step), kinds))
        if step.claims[0][0] == "answer":
            return judged, step.claims[0][1] == problem.answer
        if not solution.advance(step):
            break
    return judged, False


@torch.no_grad()
def corrections(model: Qwen2ForCausalLM, seeds: range) -> dict[str, float]:
    """Shares of planted mistakes that the next segment's first token calls wrong, and of right steps that it does."""
    no, so = (TOKENIZER.encode(word, add_special_tokens=False)[0] for word in ("No", "So"))
    flags: dict[str, list[bool]] = {}
    for seed in seeds:
        document = write_document(seed, planted=0.3)
        solution = Solution(document.problem.facts)
        ids = TOKENIZER.encode(prompt_of(document.problem), add_special_tokens=False)
        places: list[tuple[int, str]] = []
        for step, segment in zip(document.steps[:-1], document.segments[:-1], strict=True):
            kind = str(step.claims[0][0]) + (str(step.claims[0][1]) if step.claims[0][0] == "move" else "")
            is_right = solution.is_right(step)
            assert solution.advance(step)
            ids += TOKENIZER.encode(segment.replace(MARK, "") + DELIMITER, add_special_tokens=False)
            places.append((len(ids) - 1, f"{'right' if is_right else 'wrong'} {kind if not is_right else ''}"))
        logits = model(input_ids=torch.tensor([ids])).logits[0].float()
        for place, name in places:
            flags.setdefault(name, []).append(bool(logits[place, no] > logits[place, so]))
    wrong = [flag for name, some in flags.items() if name.startswith("wrong") for flag in some]
    found = {"corrects": float(np.mean(wrong)), "flags_right": float(np.mean(flags["right "]))}
    return found | {name: round(float(np.mean(some)), 3) for name, some in sorted(flags.items())}


@torch.no_grad()
def grades(model: Qwen2ForCausalLM, judged: list[Judged]) -> float:
    """AUROC of the expected grade against truth."""
    turn = turn_after(TOKENIZER, QUESTION, PREFILL)
    digits = [TOKENIZER.encode(str(digit), add_special_tokens=False)[0] for digit in range(10)]
    scores: list[float] = []
    for one in judged:
        text = prompt_of(one.problem) + "".join(segment + DELIMITER for segment in (*one.before, one.text))
        ids = TOKENIZER.encode(text, add_special_tokens=False) + turn
        logits = model(input_ids=torch.tensor([ids])).logits[0, -1].float()
        scores.append(float(logits[digits].softmax(-1) @ torch.arange(10.0)))
    return float(roc_auc_score([one.is_right for one in judged], scores))


@torch.no_grad()
def features(model: Qwen2ForCausalLM, one: Judged) -> tuple[Tensor, Tensor]:
    """What the target sees of a segment: a token's log-probability, entropy, log-rank and margin, `[length, 4]`;
    states of all layers, averaged and of the last token, `[2 * layers * hidden]`."""
    head = prompt_of(one.problem) + "".join(segment + DELIMITER for segment in one.before)
    start = TOKENIZER.encode(head, add_special_tokens=False)
    ids = TOKENIZER.encode(one.text + DELIMITER, add_special_tokens=False)
    out = model(input_ids=torch.tensor([start + ids]), output_hidden_states=True)
    logits = out.logits[0, len(start) - 1 : -1].float().log_softmax(-1)
    own = logits.gather(1, torch.tensor(ids)[:, None])
    top = logits.topk(2).values
    entropy = -(logits.exp() * logits).sum(-1, keepdim=True)
    rank = (logits > own).sum(-1, keepdim=True).float().log1p()
    states = torch.stack([layer[0, len(start) :] for layer in out.hidden_states[1:]])
    pooled = torch.cat([states.mean(1).flatten(), states[:, -1].flatten()])
    return torch.cat([own, entropy, rank, top[:, :1] - top[:, 1:]], 1), pooled


class Sequence(torch.nn.Module):
    """The baseline: a small recurrent net over the tokens' statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = torch.nn.GRU(4, 48, batch_first=True, bidirectional=True)
        self.out = torch.nn.Linear(192, 1)

    def forward(self, batch: Tensor, mask: Tensor) -> Tensor:
        states, _ = self.cells(batch)
        hidden = states.masked_fill(~mask[..., None], -1e4).amax(1)
        mean = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return self.out(torch.cat([hidden, mean], 1))[:, 0]  # type: ignore[no-any-return]


def sequence_scores(train: list[Tensor], truth: np.ndarray, test: list[Tensor], epochs: int = 30) -> np.ndarray:
    """Scores of `test` by a baseline trained on `train`."""
    torch.manual_seed(0)
    net = Sequence()
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)
    labels = torch.tensor(truth, dtype=torch.float32)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, epochs * (len(train) // 64 + 1))
    for _ in range(epochs):
        for rows in torch.randperm(len(train)).split(64):
            batch, mask = _padded([train[int(row)] for row in rows])
            loss = torch.nn.functional.binary_cross_entropy_with_logits(net(batch, mask), labels[rows])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    with torch.no_grad():
        return np.concatenate([net(*_padded(test[i : i + 256])).numpy() for i in range(0, len(test), 256)])


def _padded(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    batch = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return batch, torch.arange(batch.shape[1]) < torch.tensor([len(row) for row in rows])[:, None]


def ceiling(model: Qwen2ForCausalLM, judged: list[Judged], questions: int) -> dict[str, dict[str, float]]:
    """AUROC of truth by style on the second half of the questions: a linear probe of truth on states, the sequence, and
    the least log-probability."""
    made = [features(model, one) for one in judged]
    truth = np.array([one.is_right for one in judged])
    styles = np.array([one.problem.style for one in judged])
    is_test = np.array([one.problem.seed % questions >= questions // 2 for one in judged])
    states = torch.stack([pooled for _, pooled in made]).numpy()
    mean, deviation = states[~is_test].mean(0), states[~is_test].std(0) + 1e-3
    states = (states - mean) / deviation
    probe = LogisticRegression(C=1e-3, max_iter=2000).fit(states[~is_test], truth[~is_test])
    tokens = [statistics for statistics, _ in made]
    train, test = ([tokens[i] for i in np.flatnonzero(where)] for where in (~is_test, is_test))
    scores = {
        "states": probe.decision_function(states[is_test]),
        "sequence": sequence_scores(train, truth[~is_test], test),
        "least": np.array([rows[:, 0].min() for rows in test]),
    }
    truth, styles = truth[is_test], styles[is_test]
    found: dict[str, dict[str, float]] = {}
    for style in range(NUM_STYLES):
        own = styles == style
        areas = {name: round(float(roc_auc_score(truth[own], values[own])), 4) for name, values in scores.items()}
        found[f"style {style}"] = areas | {"steps": int(own.sum()), "wrong": round(1 - float(truth[own].mean()), 4)}
    return found


@torch.no_grad()
def token_cost(model: Qwen2ForCausalLM) -> float:
    """CPU seconds a token of greedy decoding at 300 tokens of context."""
    ids = TOKENIZER(prompt_of(make_problem(SPLITS["tune"][0])), return_tensors="pt", add_special_tokens=False).input_ids
    model.generate(ids, max_new_tokens=20, min_new_tokens=20, do_sample=False)
    began = time.process_time()
    model.generate(ids, max_new_tokens=200, min_new_tokens=200, do_sample=False)
    return (time.process_time() - began) / 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--work", type=Path, default=Path(".work/pair"))
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("--steps", type=int, default=1500, help="problems whose draft steps the probes of truth read")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    models: dict[str, Qwen2ForCausalLM] = {}
    for role in ("target", "draft"):
        learner = Learner(role, arguments.work)
        learner.train(is_dry=True)
        models[role] = learner.model.eval()
    problems = [make_problem(seed) for seed in SPLITS["tune"][: arguments.limit]]
    result: dict[str, object] = {}
    for role, model in models.items():
        for temperature in (0.0, 0.6):
            found = [judge(p, a) for p, a in zip(problems, answers(model, problems, temperature), strict=True)]
            wrong = Counter(" ".join(one.kinds) for judged, _ in found for one in judged if not one.is_right)
            steps = Counter(" ".join(one.kinds) for judged, _ in found for one in judged)
            result[f"{role} {temperature}"] = {
                "right": float(np.mean([is_right for _, is_right in found])),
                "wrong steps": {name: f"{n}/{steps[name]}" for name, n in wrong.most_common(12)},
            }
    result["corrections"] = corrections(models["target"], SPLITS["tune"][: arguments.limit])
    result["cost ratio"] = token_cost(models["target"]) / token_cost(models["draft"])
    some = [make_problem(seed) for seed in range(20_000_000, 20_000_000 + arguments.steps)]
    judged = [one for p, a in zip(some, answers(models["draft"], some, 0.6), strict=True) for one in judge(p, a)[0]]
    random.Random(0).shuffle(judged)
    result["grades"] = grades(models["target"], judged[:1500])
    result["ceiling"] = ceiling(models["target"], judged, arguments.steps)
    print(json.dumps(result, indent=1), flush=True)


if __name__ == "__main__":
    main()
