"""A training killed again and again, or with a spoilt file: it ends with the same bytes, or names the file."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from random import Random
from time import monotonic

import torch
import yaml
from transformers import AutoModelForCausalLM

from semspec.engine.checkpoint import load_tokenizer
from tests.attacks.case import Broken, Case, Draw, Family, Verdict, flipped, shown
from tests.attacks.fixtures import Fixtures
from tests.attacks.forked import Forks, Json, forks
from tests.checkpoints import save_checkpoints
from tests.training import support

Contents = dict[str, bytes]
MOST_KILLS = 3
COST = "cost.json"
"""Measured times, of which the cards hold estimates: every training has those of the undisturbed one."""


def contents(folder: Path) -> Contents:
    """The files of a finished run that a repetition makes again byte for byte."""
    suffixes = (".safetensors", ".parquet", ".json")
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix in suffixes]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def write_config(folder: Path, name: str) -> Path:
    """A small training whose products are in `folder`/`name`."""
    config = support.config(folder / "draft", folder / "target", folder / name / "out", report={"variants": False})
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json", exclude_none=True)))
    return path


class Site:
    """A finished training, and forks that train."""

    def __init__(self, folder: Path, forked: Forks) -> None:
        self.folder, self._forked, self._numbers = folder, forked, count()
        self.whole_s = 0.0
        self.whole: Contents = {}

    async def prepare(self) -> None:
        """The models, and the undisturbed training."""
        checkpoints = save_checkpoints(self.folder / "checkpoints")
        torch.manual_seed(0)
        target = AutoModelForCausalLM.from_pretrained(checkpoints["qwen2"])
        support.save_ending(target, load_tokenizer(str(checkpoints["qwen2"])), self.folder / "target")
        support.save_bytes_llama(self.folder / "draft")
        begin = monotonic()
        result = await self.train("run", "whole")
        self.whole_s = monotonic() - begin
        assert result["end"] == "loaded" and result["said"] == [0], result
        self.whole = contents(self.folder / "whole" / "out")

    async def train(self, command: str, name: str, kill_after_s: float | None = None) -> Json:
        config, work = write_config(self.folder, name), self.folder / name / "work"
        work.mkdir(parents=True, exist_ok=True)
        if name != "whole" and not (work / COST).exists():
            shutil.copy(self.folder / "whole" / "work" / COST, work)
        return await self._forked.done("train", kill_after_s, command=command, config=str(config), work=str(work))

    def new(self) -> str:
        """The name of a training to be."""
        return f"trial-{next(self._numbers)}"

    def copied(self) -> str:
        """The name of a training with all files before the probes."""
        name = self.new()
        shutil.copytree(self.folder / "whole" / "work", self.folder / name / "work", ignore=_LATER)
        return name

    def remove(self, name: str) -> None:
        shutil.rmtree(self.folder / name, ignore_errors=True)

    def check_whole(self, name: str, result: Json) -> None:
        """Raises: Broken unless the training has ended with the same bytes."""
        if result["end"] != "loaded" or result["said"] != [0]:
            raise Broken(
                Verdict.LOST, f"it does not go on: {result['end']} {result.get('why', '')} {result['told'][-400:]}"
            )
        made = contents(self.folder / name / "out")
        if changed := [path for path in self.whole if made.get(path) != self.whole[path]]:
            raise Broken(Verdict.DIFFERING, f"other bytes in {', '.join(changed)}")


_LATER = shutil.ignore_patterns("labels", "probes", "report", "out")


def _killed(site: Site, chance: Random) -> Case:
    times = [chance.uniform(0.02, 0.9) * site.whole_s for _ in range(chance.randint(1, MOST_KILLS))]
    name = site.new()

    async def run() -> None:
        try:
            for after_s in times:
                result = await site.train("run", name, after_s)
                if result["end"] == "defect":
                    raise Broken(Verdict.MEDIUM, f"a traceback: {result['why'].strip().splitlines()[-1]}")
            site.check_whole(name, await site.train("run", name))
        finally:
            site.remove(name)

    return Case("killed", f"after {', '.join(f'{time / site.whole_s:.0%}' for time in times)} of its time", run)


def _spoilt(site: Site, chance: Random) -> Case:
    name = site.copied()
    work = site.folder / name / "work"
    path = chance.choice([one for one in sorted(work.rglob("*")) if one.is_file() and one.name != COST])
    how = chance.choice(("flip", "cut", "missing"))

    async def run() -> None:
        try:
            data = path.read_bytes()
            if how == "missing":
                path.unlink()
            else:
                path.write_bytes(flipped(data, chance) if how == "flip" else data[: chance.randrange(len(data))])
            checked, result = await site.train("check", name), await site.train("run", name)
            for one in (checked, result):
                if one["end"] != "loaded" or "Traceback" in one["told"]:
                    raise Broken(Verdict.MEDIUM, f"a traceback: {one.get('why', '')[-200:]} {one['told'][-400:]}")
            if result["said"] == [0]:  # whatever was missing is made again, and what does not matter stays
                site.check_whole(name, result)
            elif str(path) not in result["told"] and str(path.parent) not in result["told"]:
                raise Broken(Verdict.MEDIUM, f"the file is not named: {result['told'][-400:]}")
        finally:
            site.remove(name)

    return Case("file spoilt", shown(f"{path.relative_to(work)}: {how}"), run)


@asynccontextmanager
async def opened(fixtures: Fixtures) -> AsyncIterator[Draw]:
    folder = fixtures.folder / "training"
    folder.mkdir()
    async with forks(fixtures.folder / "training.log") as forked:
        site = Site(folder, forked)
        await site.prepare()
        yield lambda chance: chance.choice((_killed, _spoilt, _spoilt))(site, chance)


FAMILY = Family("training kills", 36, opened)
