"""Broken files of models, probes, calibrations and datastores: refused in a line, or served under another name."""

import asyncio
import json
import secrets
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from semspec.stack import BUNDLED_PAIR
from semspec.types import ModelInfo
from tests.attacks.case import CRITICAL, MEDIUM, Case, Draw, Family, Found, Run
from tests.attacks.jobs import Json, done
from tests.attacks.victim import Victim
from tests.helpers.checkpoints import save_checkpoints
from tests.retrieval.support import write
from tests.security.support import edited, odd_json

TARGET = ModelInfo("target", "fingerprint", "tokens", 2, 16, 600)
MAX_LINE = 1500
TRAINING = Path(__file__).resolve().parents[2] / "semspec/training/configs" / "r1-1.5b-r1-32b.yaml"


@dataclass(frozen=True, slots=True)
class Kind:
    """Files of one kind: a sound folder, the job that loads it, and what came of that."""

    job: str
    folder: Path
    names: tuple[str, ...]
    """The files that are spoilt, relative to the folder."""
    result: Json
    """Of the sound folder."""


HOW = "flip flip edit cut empty missing folder link noise json json deep deep".split()


def spoil(path: Path, how: str, chance: Random) -> None:
    data = path.read_bytes()
    path.unlink()
    if how == "folder":
        path.mkdir()
    elif how == "link":
        path.symlink_to(
            chance.choice(("/dev/full", "/nowhere", path.name, "/proc/self/mem", "/dev/null"))
        )
    elif how != "missing":
        path.write_bytes(_spoilt(data, how, chance))


def _spoilt(data: bytes, how: str, chance: Random) -> bytes:
    place = chance.randrange(len(data))
    if how == "json":
        with suppress(ValueError):  # it is no JSON
            return json.dumps(odd_json(json.loads(data), chance)).encode()
    if how == "deep":
        return deep(chance)
    noise = chance.randbytes(chance.choice((1, 100, len(data))))
    flipped = data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :]
    return {"edit": edited(data, chance), "cut": data[:place], "empty": b"", "noise": noise}.get(
        how, flipped
    )


def deep(chance: Random) -> bytes:
    """JSON of many levels, which is also YAML."""
    number = chance.choice((200, 900, 5_000, 100_000))
    lists, objects = "[" * number + "]" * number, '{"a":' * number + "1" + "}" * number
    return chance.choice(
        (lists, objects, f'{{"format": 1, "a": {lists}}}', f"[{objects}]")
    ).encode()


def check(kind: Kind, result: Json) -> None:
    """Raises: Found unless it was refused in one line, is the same as before, or has another name."""
    match result["end"]:
        case "defect":
            raise Found(MEDIUM, f"a traceback: {result['why'].strip().splitlines()[-1]}")
        case "killed":
            raise Found(CRITICAL, f"{result['why']}: it takes too long, or too much memory")
        case "refused":
            if not result["why"] or "\n" in result["why"] or len(result["why"]) > MAX_LINE:
                raise Found(MEDIUM, f"not one line: {result['why'][:300]!r}")
        case "loaded":
            is_named = result["identity"] != kind.result["identity"]
            if result["said"] != kind.result["said"] and not is_named:
                raise Found(CRITICAL, f"served under the same name: {result['said']}"[:400])


def kinds(folder: Path) -> list[Kind]:
    """The sound folders."""
    save_checkpoints(folder)
    shutil.copytree(BUNDLED_PAIR / "probes", folder / "probes")
    (folder / "settings").mkdir()
    shutil.copy(TRAINING, folder / "settings" / "training.yaml")
    for name in ("pair.json", "likelihood.json"):
        shutil.copy(BUNDLED_PAIR / "probes" / name, folder / "settings")
    equivalence = {"kind": "python", "object": "semspec_demo.probe_data:ParserEquivalence"}
    (folder / "settings" / "equivalence.json").write_text(json.dumps(equivalence))
    write(folder / "datastore", TARGET, [[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 2, 8]])
    every: list[tuple[str, str, Callable[[Path], bool]]] = [
        ("model", "qwen2", lambda path: True),
        ("probes", "probes", lambda path: path.stem in ("draft", "target")),
        ("likelihood", "probes", lambda path: path.name == "likelihood.json"),
        ("release", "probes", lambda path: path.name == "pair.json"),
        ("datastore", "datastore", lambda path: True),
        ("training", "settings", lambda path: path.name == "training.yaml"),
        ("equivalence", "settings", lambda path: path.name == "equivalence.json"),
    ]
    found = []
    for job, name, is_its in every:
        files = [path for path in (folder / name).rglob("*") if path.is_file() and is_its(path)]
        names = tuple(sorted(str(path.relative_to(folder / name)) for path in files))
        found.append(Kind(job, folder / name, names, result := done(job, folder / name)))
        assert result["end"] == "loaded", result
    return found


@asynccontextmanager
async def opened(_: Victim, folder: Path) -> AsyncIterator[tuple[Draw, Run]]:
    by_job = {kind.job: kind for kind in await asyncio.to_thread(kinds, folder)}

    def draw(seed: str, number: int) -> list[Case]:
        chance, cases = Random(seed), list[Case]()
        for i in range(number):
            kind = by_job[chance.choices(list(by_job), (5, 4, 2, 1, 2, 1, 1))[0]]
            case = {"job": kind.job, "file": chance.choice(kind.names), "how": chance.choice(HOW)}
            cases.append({**case, "seed": f"{seed}/{i}"})
        return cases

    async def run(case: Case) -> None:
        kind = by_job[case["job"]]
        copy = Path(shutil.copytree(kind.folder, folder / secrets.token_hex(4)))
        try:
            spoil(copy / case["file"], case["how"], Random(case["seed"]))
            check(kind, await asyncio.to_thread(done, kind.job, copy))
        finally:
            shutil.rmtree(copy)

    yield draw, run


FAMILY = Family("broken files", 100, opened, at_once=2)
