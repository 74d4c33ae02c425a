"""Reads questions from a JSON lines file or a hub dataset."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semspec.errors import InvalidRequest
from semspec.reporting.files import json_lines
from semspec.types import Message
from semspec_bench.tasks.protocol import Question

Parts = tuple[str, tuple[Message, ...], str]
"""A question's text, its messages and its reference."""


@dataclass(frozen=True, slots=True)
class HubDataset:
    """A dataset of the Hugging Face hub, or a folder with one."""

    id: str
    split: str
    config: str | None = None
    is_gated: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One record, with its position for messages."""

    place: str
    values: Mapping[str, Any]

    def text(self, *names: str) -> str:
        """Return the first of these fields that the record has. Raises: InvalidRequest when it is missing or empty."""
        name = next((name for name in names if name in self.values), None)
        if name is None:
            fields = ", ".join(self.values) or "none"
            raise InvalidRequest(
                f"{self.place} has no field {' or '.join(names)}", remedy=f"its fields are {fields}"
            )
        value = self.values[name]
        if (
            isinstance(value, bool)
            or not isinstance(value, str | int | float)
            or not str(value).strip()
        ):
            raise InvalidRequest(
                f"{self.place}: field {name} must be text or a number, not {value!r}"
            )
        # A table with a column of floats writes 27 as 27.0.
        return (
            str(int(value))
            if isinstance(value, float) and value.is_integer()
            else str(value).strip()
        )

    def has(self, name: str) -> bool:
        return self.values.get(name) not in (None, "")


def read_rows(dataset: HubDataset, data: str | None) -> Sequence[Row]:
    """Read all records of `data`, a file or the id of a dataset, or of `dataset`, the task's default.

    Raises: InvalidRequest with the remedy when they cannot be read, or there are none.
    """
    if data is None:
        return _checked(list(_hub_rows(dataset)), dataset.id)
    if _is_file(data):
        return _checked([Row(*line) for line in json_lines(Path(data))], data)
    is_own = data == dataset.id
    return _checked(list(_hub_rows(dataset if is_own else HubDataset(data, dataset.split))), data)


def _is_file(data: str) -> bool:
    """Return whether `data` is a file, existing or not; a folder is a dataset, and an id has at most one slash."""
    path = Path(data)
    if path.is_dir():
        return False
    return (
        path.is_file()
        or path.is_absolute()
        or path.suffix in (".json", ".jsonl")
        or len(path.parts) > 2
    )


def _checked(rows: Sequence[Row], title: str) -> Sequence[Row]:
    if not rows:
        raise InvalidRequest(
            f"{title} contains no question",
            remedy="give a JSON lines file with one question on each line",
        )
    return rows


def _hub_rows(dataset: HubDataset) -> Iterator[Row]:
    import datasets  # slow to import and used only here

    try:
        splits: Mapping[str, Iterable[Mapping[str, Any]]] = datasets.load_dataset(
            dataset.id, dataset.config
        )
    except Exception as error:  # of pyarrow, of the hub's client, and its own
        raise _unavailable(dataset, error) from error
    rows = splits[_split(dataset, list(splits))]
    for number, row in enumerate(rows, 1):
        yield Row(f"{dataset.id}, row {number}", row)


def _split(dataset: HubDataset, known: list[str]) -> str:
    """The requested split, or the only one. Raises: InvalidRequest."""
    if dataset.split in known or len(known) == 1:
        return dataset.split if dataset.split in known else known[0]
    raise InvalidRequest(
        f"dataset {dataset.id} has no split {dataset.split!r}, but {', '.join(known)}",
        remedy="save the one meant as JSON lines and give it with --data",
    )


def _unavailable(dataset: HubDataset, error: Exception) -> InvalidRequest:
    reason = " ".join(str(error).split())[:300].rstrip(".")
    remedies = [
        "give a JSON lines file with --data",
        "or set HF_HUB_OFFLINE=1 where the hub's cache holds it",
    ]
    if dataset.is_gated:
        page = f"https://huggingface.co/datasets/{dataset.id}"
        remedies.insert(
            0, f"it is gated: ask for access at {page} and log in with `hf auth login`, or"
        )
    message = f"cannot load dataset {dataset.id}: {reason}"
    return InvalidRequest(message, remedy=" ".join(remedies))


def make_questions(
    rows: Sequence[Row], id_field: str, parts: Callable[[Row], Parts]
) -> list[Question]:
    """Return each record's question, in order, named by its `id_field` or, without one, by a digest of its text."""
    questions: list[Question] = []
    taken: set[str] = set()
    for row in rows:
        text, messages, reference = parts(row)
        name = (
            row.text(id_field)
            if row.has(id_field)
            else hashlib.sha256(text.encode()).hexdigest()[:12]
        )
        name = _unique_name(name, taken)
        taken.add(name)
        questions.append(Question(name, messages, reference))
    return questions


def _unique_name(name: str, taken: set[str]) -> str:
    """Return the name, numbered if an earlier question has it."""
    number, candidate = 1, name
    while candidate in taken:
        number += 1
        candidate = f"{name}#{number}"
    return candidate
