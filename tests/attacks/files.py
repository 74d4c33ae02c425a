"""Broken files of models, probes, calibrations and datastores: refused in a line, or served under another name."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random

from semspec.stack import BUNDLED_PAIR
from semspec.types import ModelInfo
from tests.attacks.case import Broken, Case, Draw, Family, Verdict, edited, flipped, odd_json, shown
from tests.attacks.fixtures import Victim
from tests.attacks.jobs import Json, done
from tests.checkpoints import save_checkpoints
from tests.retrieval.support import write

TARGET = ModelInfo("target", "fingerprint", "tokens", 2, 16, 600)
MAX_LINE = 1500


@dataclass(frozen=True, slots=True)
class Kind:
    """Files of one kind: a sound folder, the job that loads it, and what came of that."""

    job: str
    folder: Path
    names: tuple[str, ...]
    """The files that are spoilt, relative to the folder."""
    result: Json
    """Of the sound folder."""


def spoilt(path: Path, chance: Random) -> str:
    """Spoil a file; returns how."""
    data = path.read_bytes()
    how = chance.choice(("flip", "flip", "edit", "cut", "empty", "missing", "folder", "link", "noise", "json", "json"))
    if how == "json" and path.suffix != ".json":
        how = "flip"
    match how:
        case "flip":
            path.write_bytes(flipped(data, chance))
        case "edit":
            path.write_bytes(edited(data, chance))
        case "cut":
            path.write_bytes(data[: chance.randrange(len(data))])
        case "empty":
            path.write_bytes(b"")
        case "missing":
            path.unlink()
        case "folder":
            path.unlink()
            path.mkdir()
        case "link":
            path.unlink()
            path.symlink_to(chance.choice(("/dev/full", "/nowhere", path.name, "/proc/self/mem", "/dev/null")))
        case "noise":
            path.write_bytes(chance.randbytes(chance.choice((1, 100, len(data)))))
        case "json":
            value = json.loads(data)
            for _ in range(chance.randint(1, 2)):
                value = odd_json(value, chance)
            path.write_text(json.dumps(value))
    return how


def check(kind: Kind, result: Json) -> None:
    """Raises: Broken unless it was refused in one line, is the same as before, or has another name."""
    match result["end"]:
        case "defect":
            raise Broken(Verdict.MEDIUM, f"a traceback: {result['why'].strip().splitlines()[-1]}")
        case "killed":
            raise Broken(Verdict.LOST, f"{result['why']}: it takes too long, or too much memory")
        case "refused":
            if not result["why"] or "\n" in result["why"] or len(result["why"]) > MAX_LINE:
                raise Broken(Verdict.MEDIUM, f"not one line: {result['why'][:300]!r}")
        case "loaded":
            is_named = result["identity"] != kind.result["identity"]
            if result["said"] != kind.result["said"] and not is_named:
                raise Broken(Verdict.DIFFERING, f"served under the same name: {result['said']}"[:400])


def kinds(folder: Path) -> list[Kind]:
    """The sound folders."""
    save_checkpoints(folder)
    shutil.copytree(BUNDLED_PAIR / "probes", folder / "probes")
    write(folder / "datastore", TARGET, [[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 2, 8]])
    every: list[tuple[str, str, Callable[[Path], bool]]] = [
        ("model", "qwen2", lambda path: True),
        ("probes", "probes", lambda path: path.stem in ("draft", "target")),
        ("likelihood", "probes", lambda path: path.name == "likelihood.json"),
        ("release", "probes", lambda path: path.name == "pair.json"),
        ("datastore", "datastore", lambda path: True),
    ]
    found = []
    for job, name, is_its in every:
        place = folder / name
        names = tuple(
            sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file() and is_its(path))
        )
        result = done(job, place)
        assert result["end"] == "loaded", result
        found.append(Kind(job, place, names, result))
    return found


@asynccontextmanager
async def opened(_: Victim, folder: Path) -> AsyncIterator[Draw]:
    numbers = count()
    choices = await asyncio.to_thread(kinds, folder)

    def draw(chance: Random) -> Case:
        kind = chance.choices(choices, (5, 4, 2, 1, 2))[0]
        copy = Path(shutil.copytree(kind.folder, folder / f"spoilt-{next(numbers)}"))
        name = chance.choice(kind.names)
        how = spoilt(copy / name, chance)

        async def run() -> None:
            try:
                check(kind, await asyncio.to_thread(done, kind.job, copy))
            finally:
                shutil.rmtree(copy)

        return Case(kind.job, shown(f"{name}: {how}"), run)

    yield draw


FAMILY = Family("broken files", 100, opened)
