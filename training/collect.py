"""`semspec train collect`: fetches answers whose owners consent into a collection for `semspec train run`."""

import argparse
import asyncio
import fcntl
import os
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path

from semspec.client import Gateway, Json
from semspec.commands.options import API_KEY, api_key
from semspec.errors import Conflict, InvalidRequest, Mismatch
from semspec.training.data.questions import COLLECTION_FORMAT, opened
from semspec.training.files import Row, StageFolder, read_rows, write_rows
from semspec.training.progress import Reporter

PAGE = 50
"""Answers of a call, and of a shard at most."""


def add_options(parser: argparse.ArgumentParser, command: str) -> None:
    parser.add_argument(
        "--output", type=Path, required=True, metavar="DIR", help="folder of the collection"
    )
    parser.add_argument(
        "--gateway",
        "--url",
        default="http://127.0.0.1:8080",
        metavar="URL",
        help="default: %(default)s",
    )
    whose = f"a key with the option collector (default: ${API_KEY})"
    parser.add_argument(
        "--api-key", type=api_key, metavar="KEY", default=os.environ.get(API_KEY), help=whose
    )
    parser.add_argument(
        "--max-answers",
        type=int,
        default=2_000,
        metavar="N",
        help="most answers in the folder (default: %(default)s)",
    )
    parser.add_argument(
        "--forget",
        metavar="OWNER",
        help="fetch nothing, and delete all answers of this owner from the folder",
    )


def run(options: argparse.Namespace, reporter: Reporter) -> int:
    """Raises: Unavailable, Mismatch when the folder is of other models, Conflict when another process writes to it."""
    if options.forget is not None:
        opened(options.output)
    with alone(options.output) as folder:
        if options.forget is not None:
            num = forget(folder, options.forget)
            reporter.say(f"{num} answers of {options.forget} are deleted from {folder.path}")
        else:
            num = asyncio.run(
                _fetched(Gateway.at(options.gateway, options.api_key), folder, options.max_answers)
            )
            is_full = num_answers(folder) >= options.max_answers
            full = "; it is full: train on it, or raise --max-answers" if is_full else ""
            reporter.say(f"{num} new answers, {num_answers(folder)} in {folder.path}{full}")
    return 0


async def _fetched(gateway: Gateway, folder: StageFolder, max_answers: int) -> int:
    async with aclosing(gateway):
        return await fetch(gateway, folder, max_answers)


async def fetch(gateway: Gateway, folder: StageFolder, max_answers: int) -> int:
    """Add the answers listed since the last fetch, a page a shard; return their number. A shard's manifest has the
    position after it, so that a fetch that ends in its midst is continued, and loses and repeats nothing.

    Raises: Unavailable, NotFound for a key that may not read it, Mismatch for other models than the folder's.
    """
    numbers, room = folder.numbers(), max_answers - num_answers(folder)
    number, after = (numbers[-1] + 1, _facts(folder, numbers[-1])["next"]) if numbers else (0, "0")
    num_new = 0
    while num_new < room:
        page = await gateway.collection(after, min(PAGE, room - num_new))
        _claim(folder, {"collection": COLLECTION_FORMAT, **{name: page[name] for name in _OF_PAGE}})
        if page["next"] == after:
            break
        after = page["next"]
        if rows := [_row(answer) for answer in page["data"]]:
            write_rows(folder.file(number, ".parquet"), rows)
            folder.commit(number, [".parquet"], num_answers=len(rows), next=after)
            num_new, number = num_new + len(rows), number + 1
    return num_new


def forget(folder: StageFolder, owner: str) -> int:
    """Delete an owner's answers; return their number. After a crash in its midst, the same call completes it."""
    num_deleted = 0
    for number in folder.numbers():
        rows, facts = read_rows(folder.file(number, ".parquet")), _facts(folder, number)
        kept = [row for row in rows if row["owner"] != owner]
        if len(kept) < facts["num_answers"]:
            write_rows(folder.file(number, ".parquet"), kept)
            folder.commit(number, [".parquet"], **facts | {"num_answers": len(kept)})
        num_deleted += len(rows) - len(kept)
    return num_deleted


def num_answers(folder: StageFolder) -> int:
    return sum(_facts(folder, number)["num_answers"] for number in folder.numbers())


_OF_PAGE = ("draft", "target", "segmentation")


def _claim(folder: StageFolder, recipe: Row) -> None:
    if folder.recipe.exists() and (differing := folder.differing(recipe)):
        raise Mismatch(
            f"the gateway's answers do not belong into {folder.path} ({'; '.join(differing)}); give another --output"
        )
    folder.claim(recipe)


def _row(answer: Json) -> Row:
    prompt = answer["prompt"] | {"writer": "user"}
    segments = [{name: segment[name] for name in prompt} for segment in answer["segments"]]
    draft = answer["draft_prompt"]
    return {
        **{name: answer[name] for name in ("id", "owner", "conversation", "question")},
        "pieces": [prompt, *segments],
        "draft_prompt": draft and draft | {"writer": "user"},
    }


def _facts(folder: StageFolder, number: int) -> Row:
    manifest = folder.manifest(number)
    if manifest is None or not {"num_answers", "next"} <= manifest.facts.keys():
        raise InvalidRequest(
            f"{folder.file(number, '.json')} is not of a collection; give another --output",
            "output",
        )
    return manifest.facts


@contextmanager
def alone(path: Path) -> Iterator[StageFolder]:
    """The folder, which no other process writes to; what one left unfinished is deleted. Raises: Conflict."""
    path.mkdir(parents=True, exist_ok=True)
    with (path / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(
                f"another `semspec train collect` writes to {path}; wait for it"
            ) from None
        for partial in path.glob("*.partial"):
            partial.unlink()
        yield StageFolder(path)
