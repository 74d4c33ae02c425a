"""`python -m studies.pair.verdict`: whether pooled states tell more than token probabilities, by PREREGISTERED.md.

Reads the samples, fits each recipe and baseline with three seeds on `probe`, and compares them on `report`. With
`--truth` the probes learn the truth instead of the sampled share and are compared on `tune`: the last of the gates.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn

from semspec.training.evaluation.metrics import Resampling, auroc, dense_ranks
from studies.pair.samples import SAMPLES

SEEDS, DRAWS = range(3), 1000
RATES = 3e-4, 1e-3, 3e-3
COLUMNS = {"draft .6": 0, "draft 1": 1, "target .6": 2, "target 1": 3}


@dataclass
class Rows:
    """Samples of a split; arrays are read when they are asked for."""

    folder: Path

    def __getitem__(self, name: str) -> np.ndarray:
        parts: list[np.ndarray] = []
        for file in sorted(self.folder.glob("*.safetensors"), key=lambda file: int(file.stem)):
            with safe_open(file, "np") as opened:
                parts.append(opened.get_tensor(name))
        return np.concatenate(parts)

    @cached_property
    def counts(self) -> np.ndarray:
        return self["counts"].astype(np.float32)

    @cached_property
    def question(self) -> np.ndarray:
        return np.unique(self["question"], return_inverse=True)[1]

    @cached_property
    def _alike(self) -> np.ndarray:
        """Counts of each row's meaning at its place, by model and temperature, `[rows, 4]`."""
        keys = np.stack([self["question"], self["context"], self["meaning"]], 1)
        group = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)
        totals = np.zeros((group.max() + 1, 4), np.float32)
        np.add.at(totals, group, self.counts)
        return totals[group]

    def share(self, column: str, without_own: bool = False) -> np.ndarray:
        """Share of a model's samples that mean what a row means; `without_own`, of the other samples."""
        alike = self._alike[:, COLUMNS[column]]
        return (alike - 1).clip(min=0) / (SAMPLES - 1) if without_own else alike / SAMPLES


class Net(nn.Module):
    """A probe: one hidden layer over fixed inputs, or a recurrent or attention net over a sequence."""

    body: nn.Module
    mix: nn.Module

    def __init__(self, kind: str, width: int, projection: int | None) -> None:
        super().__init__()
        self.kind = kind
        hidden = {"states": 256, "recurrent": 96, "attention": 64, "text": 96}[kind]
        match kind:
            case "states":
                first = nn.Linear(width, projection or width, bias=False).requires_grad_(False)
                scaled = (nn.BatchNorm1d(width, affine=False), *((first,) if projection else ()))
                self.body = nn.Sequential(
                    *scaled, nn.Linear(projection or width, hidden), nn.ReLU()
                )
            case "attention":
                layer = nn.TransformerEncoderLayer(hidden, 4, 128, dropout=0.0, batch_first=True)
                self.body = nn.Linear(width + 1, hidden)
                self.mix = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            case _:
                self.body = nn.Embedding(width + 1, 64) if kind == "text" else nn.Identity()
                width = 64 if kind == "text" else width
                self.mix = nn.GRU(width, hidden // 2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(hidden if kind == "states" else 2 * hidden, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits of `[rows, width]`, or of `[rows, length, width]` (of tokens, `[rows, length]`)."""
        if self.kind == "states":
            return self.out(self.body(inputs))[:, 0]  # type: ignore[no-any-return]
        is_there = inputs >= 0 if self.kind == "text" else (inputs != 0).any(-1)
        if self.kind == "attention":
            place = torch.linspace(0, 1, inputs.shape[1]).expand(inputs.shape[:2])[..., None]
            mixed = self.mix(
                self.body(torch.cat([inputs, place], -1)), src_key_padding_mask=~is_there
            )
        else:
            mixed, _ = self.mix(self.body(inputs.long() + 1 if self.kind == "text" else inputs))
        mask = is_there[..., None]
        most = mixed.masked_fill(~mask, -1e4).amax(1)
        return self.out(torch.cat([most, (mixed * mask).sum(1) / mask.sum(1)], 1))[:, 0]  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Recipe:
    """A probe's inputs, its training rows, and the settings of its fit."""

    name: str
    kind: str
    read: Callable[[Rows], np.ndarray]
    columns: tuple[str, ...] = ("draft .6", "draft 1", "target .6", "target 1")
    is_squared: bool = False
    decay: float = 0.01
    projection: int | None = None


def _surprisal(rows: Rows) -> np.ndarray:
    """Ten statistics of a segment's tokens under the target: length, and of log-probability, entropy and log rank the
    mean, the least and the greatest."""
    values = rows["target_statistics"][:, 1, :, :3].astype(np.float32)
    is_token = (values != 0).any(-1, keepdims=True)
    length = is_token.sum(1)
    statistics = [
        length,
        values.sum(1) / length,
        np.where(is_token, values, 99).min(1),
        np.where(is_token, values, -99).max(1),
    ]
    return np.concatenate(statistics, 1)


def _sequence(rows: Rows) -> np.ndarray:
    return np.concatenate([rows["target_statistics"][:, index] for index in (0, 1)], -1)


def _ours(rows: Rows, pooling: str = "mean") -> np.ndarray:
    return np.concatenate([rows[f"target_{pooling}"], _surprisal(rows).astype(np.float16)], 1)


OURS = Recipe("ours", "states", _ours)
SEQUENCE = Recipe("sequence, recurrent", "recurrent", _sequence)
RECIPES = (
    Recipe(
        "paper",
        "states",
        lambda rows: rows["target_mean"],
        ("target .6", "target 1"),
        is_squared=True,
    ),
    OURS,
    SEQUENCE,
    Recipe("sequence, attention", "attention", _sequence),
    Recipe("text alone", "text", lambda rows: rows["tokens"]),
    Recipe("context alone", "states", lambda rows: rows["target_before"]),
    Recipe("surprisal statistics", "states", _surprisal),
    *(
        replace(OURS, name=f"ours, {pool}", read=partial(_ours, pooling=pool))
        for pool in ("max", "last")
    ),
    replace(OURS, name="ours, projected", projection=64 * 25),
    *(replace(OURS, name=f"ours, decay {decay}", decay=decay) for decay in (0.001, 0.1, 1.0)),
)


def fit(
    recipe: Recipe, rows: Rows, temperature: str, epochs: int, is_truth: bool
) -> Iterator[tuple[Net, float, float]]:
    """Yield for each seed the best net on validation, the last 15/85 of the questions, with its loss there and its
    learning rate, which the first seed chooses."""
    inputs = torch.from_numpy(recipe.read(rows))
    label = torch.from_numpy(rows.share(f"target {temperature}"))
    others = torch.from_numpy(rows.share(f"target {temperature}", without_own=True))
    weight = torch.from_numpy(rows.counts[:, [COLUMNS[name] for name in recipe.columns]].sum(1))
    is_own = torch.from_numpy(rows.counts[:, COLUMNS[f"target {temperature}"]] > 0)
    if is_truth:
        label = torch.from_numpy(rows["is_right"]).float()
    elif not recipe.is_squared:
        label = torch.where(is_own, others, label)
    is_train = torch.from_numpy(rows.question < 70 / 85 * (rows.question.max() + 1))
    train, test = (torch.nonzero(mask & (weight > 0))[:, 0] for mask in (is_train, ~is_train))
    rates: tuple[float, ...] = RATES
    for seed in SEEDS:
        best, best_loss, best_rate = None, math.inf, rates[0]
        for rate in rates:
            torch.manual_seed(seed)
            net = Net(
                recipe.kind, 1024 if recipe.kind == "text" else inputs.shape[-1], recipe.projection
            )
            optimizer = torch.optim.AdamW(net.parameters(), rate, weight_decay=recipe.decay)
            schedule = torch.optim.lr_scheduler.OneCycleLR(
                optimizer, rate, epochs * (len(train) // 512 + 1)
            )
            for _ in range(epochs):
                for batch in torch.randperm(len(train)).split(512):
                    chosen = train[batch]
                    _loss(
                        recipe, net(inputs[chosen].float()), label[chosen], weight[chosen]
                    ).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    schedule.step()
                net.eval()
                loss = float(_loss(recipe, predict(net, inputs[test]), label[test], weight[test]))
                net.train()
                if loss < best_loss:
                    best, best_loss, best_rate = deepcopy(net), loss, rate
        assert best is not None
        rates = (best_rate,)
        yield best.eval(), best_loss, best_rate


def _loss(recipe: Recipe, logits: Tensor, label: Tensor, weight: Tensor) -> Tensor:
    if recipe.is_squared:
        losses = (logits.sigmoid() - label) ** 2
    else:
        losses = nn.functional.binary_cross_entropy_with_logits(logits, label, reduction="none")
    return (losses * weight).sum() / weight.sum()


@torch.no_grad()
def predict(net: Net, inputs: Tensor) -> Tensor:
    """Logits."""
    return torch.cat([net(part.float()) for part in inputs.split(4096)])


class Judge:
    """Endpoints of one dose: weighted by how often the draft wrote a segment; intervals by questions drawn anew."""

    def __init__(self, rows: Rows, temperature: str, style: int) -> None:
        weight = rows.counts[:, COLUMNS[f"draft {temperature}"]]
        self._of = np.flatnonzero((rows["style"] == style) & (weight > 0))
        self._weight, self._truth = weight[self._of], rows["is_right"][self._of]
        self._share = rows.share(f"target {temperature}")[self._of]
        groups, self._group = np.unique(rows.question[self._of], return_inverse=True)
        draws = Resampling.of(groups, DRAWS).counts
        self._draws = np.concatenate([np.ones((1, len(groups)), int), draws])

    def auroc(self, score: np.ndarray) -> np.ndarray:
        """Return the AUROC of the truth; all questions first, then each draw."""
        ranks = dense_ranks(score[self._of])
        return np.array(
            [auroc(ranks, self._truth, self._weight * draw[self._group]) for draw in self._draws]
        )

    def log_loss(self, score: np.ndarray) -> np.ndarray:
        """Return the log-loss of the sampled share; all questions first, then each draw."""
        p = score[self._of].clip(0.001, 0.999)
        losses = -(self._share * np.log(p) + (1 - self._share) * np.log(1 - p)) * self._weight
        loss, weight = (np.bincount(self._group, values) for values in (losses, self._weight))
        return np.asarray(self._draws @ loss / (self._draws @ weight))

    def r2(self, score: np.ndarray) -> float:
        mean = np.average(self._share, weights=self._weight)
        error = np.average((score[self._of] - self._share) ** 2, weights=self._weight)
        return float(1 - error / np.average((self._share - mean) ** 2, weights=self._weight))


def _interval(values: np.ndarray) -> list[float]:
    """The value and its 95% interval."""
    return [round(float(x), 4) for x in (values[0], *np.percentile(values[1:], (2.5, 97.5)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--work", type=Path, default=Path(".work/demo-models"))
    parser.add_argument("--temperature", default=".6", choices=(".6", "1"))
    parser.add_argument("--truth", action="store_true")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--only", nargs="*", default=[recipe.name for recipe in RECIPES])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    train, test = (
        Rows(arguments.work / "probe"),
        Rows(arguments.work / ("tune" if arguments.truth else "report")),
    )
    judges = [Judge(test, arguments.temperature, style) for style in range(4)]
    file = (
        arguments.work / f"{'truth' if arguments.truth else 'verdict'}{arguments.temperature}.json"
    )
    done: dict[str, dict[str, object]] = json.loads(file.read_text()) if file.exists() else {}
    share, rng = test.share(f"target {arguments.temperature}"), np.random.default_rng(0)
    same = np.rint(share * SAMPLES).astype(int)
    scores = {
        f"{k} samples": rng.hypergeometric(same, SAMPLES - same, k) / k for k in (1, 2, 4, SAMPLES)
    }
    for recipe in (recipe for recipe in RECIPES if recipe.name in arguments.only):
        inputs = torch.from_numpy(recipe.read(test))
        fitted = fit(recipe, train, arguments.temperature, arguments.epochs, arguments.truth)
        for seed, (net, loss, rate) in zip(SEEDS, fitted, strict=True):
            scores[f"{recipe.name} {seed}"] = predict(net, inputs).sigmoid().numpy()
            print(recipe.name, seed, rate, round(loss, 4), flush=True)
    for style, judge in enumerate(judges):
        found = {
            name: {"auroc": judge.auroc(score), "log_loss": judge.log_loss(score)}
            for name, score in scores.items()
        }
        for name, values in found.items():
            table = {key: _interval(drawn) for key, drawn in values.items()} | {
                "r2": [round(judge.r2(scores[name]), 4)]
            }
            if sequence := found.get(f"{SEQUENCE.name} {name[-1]}"):
                table |= {
                    f"{key} beyond the sequence": _interval(values[key] - sequence[key])
                    for key in values
                }
            done.setdefault(name, {})[f"style {style}"] = table
    file.write_text(json.dumps(done, indent=1) + "\n")


if __name__ == "__main__":
    main()
