"""Stage 0: questions, each in one split, without those of the evaluation sets."""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from semspec.clustering.equivalence import import_object
from semspec.errors import InvalidRequest
from semspec.reporting.files import Row, json_lines, write_json
from semspec.reporting.progress import Reporter
from semspec.training.config import QuestionSource, Shares, WorkConfig
from semspec.training.files import StageFolder, write_rows

NGRAM_WORDS = 8
SHARED_NGRAMS = 0.5
"""A question counts as a repetition if one evaluation question contains this share of its word n-grams."""

_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Question:
    """One question, with a reasoning trace where the data has one."""

    id: str
    text: str
    domain: str
    split: str
    """train, validation, calibration or test."""
    trace: str | None = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """An excluded question, with the reason."""

    id: str
    text: str
    reason: str


def gather(
    sources: Sequence[QuestionSource], evaluation_sets: Sequence[QuestionSource], shares: Shares
) -> tuple[list[Question], list[Dropped]]:
    """Return all questions of `sources`, in order, and the dropped ones. Raises: InvalidRequest."""
    has_test = any(source.role == "test" for source in sources)
    sides = _split_function(shares, with_test=not has_test)
    seen = _SeenQuestions()
    for source in evaluation_sets:
        for row in _rows(source):
            seen.add(str(row[source.question]), _title(source), with_parts=True)
    questions: list[Question] = []
    dropped: list[Dropped] = []
    # Test questions first, so that of two equal questions the training question is dropped.
    for index, source in sorted(enumerate(sources), key=lambda pair: pair[1].role != "test"):
        for number, row in enumerate(_rows(source)):
            text, identifier = str(row[source.question]), f"{index}-{number}"
            if source.id:
                identifier = str(row[source.id])
            if reason := seen.repetition_reason(text):
                dropped.append(Dropped(identifier, text, reason))
                continue
            seen.add(text, f"{_title(source)} ({identifier})")
            domain = str(row[source.domain_field]) if source.domain_field else source.domain
            split = "test" if source.role == "test" else sides(identifier)
            trace = str(row[source.trace]) if source.trace else None
            questions.append(Question(identifier, text, domain, split, trace))
    _check(questions)
    return questions, dropped


def stored_questions(work: Path, config: WorkConfig, reporter: Reporter) -> list[Question]:
    """Return the questions of `config`, gathered at the first call and read from the work folder by later ones."""
    folder = StageFolder(work / "questions")
    folder.claim(questions_recipe(config))
    if not folder.is_done(0):
        found, dropped = gather(config.questions, config.evaluation_sets, config.shares)
        write_rows(folder.file(0, ".parquet"), [asdict(question) for question in found])
        write_json(folder.path / "dropped.json", [asdict(question) for question in dropped])
        folder.commit(0, [".parquet"], num_questions=len(found), num_dropped=len(dropped))
        reporter.say(
            f"{len(found)} questions; {len(dropped)} dropped, listed in {folder.path}/dropped.json"
        )
    names = [field.name for field in fields(Question)]  # the file may have other columns
    return [Question(**{name: row[name] for name in names}) for row in folder.rows(0)]


def questions_recipe(config: WorkConfig) -> Row:
    return config.model_dump(mode="json", include={"questions", "evaluation_sets", "shares"})


def _check(questions: Sequence[Question]) -> None:
    splits = {question.split for question in questions}
    if missing := {"train", "validation", "test"} - splits:
        raise InvalidRequest(
            f"{len(questions)} questions leave none for {', '.join(sorted(missing))}",
            remedy="give more questions, or other shares",
        )
    if len({question.id for question in questions}) != len(questions):
        raise InvalidRequest(
            "two questions have the same id", remedy="name another field as id, or none"
        )


def _split_function(shares: Shares, with_test: bool) -> Callable[[str], str]:
    """Return a function from a question's id alone to its split, so that adding questions changes no other's split."""

    def side(identifier: str) -> str:
        position = (
            int.from_bytes(hashlib.sha256(identifier.encode()).digest()[:8], "little") / 2**64
        )
        for name, share in (
            ("validation", shares.validation),
            ("calibration", shares.calibration),
            ("test", shares.test if with_test else 0.0),
        ):
            if position < share:
                return name
            position -= share
        return "train"

    return side


class _SeenQuestions:
    """Questions seen so far, to detect repetitions (regardless of punctuation) and long common passages."""

    def __init__(self) -> None:
        self._exact: dict[str, str] = {}
        self._ngrams: dict[tuple[str, ...], set[str]] = {}

    def add(self, text: str, source: str, with_parts: bool = False) -> None:
        """Note a question. `with_parts`: later questions are also repetitions if they share long passages with it."""
        words = _words(text)
        self._exact.setdefault(" ".join(words), source)
        for ngram in _ngrams(words) if with_parts else ():
            self._ngrams.setdefault(ngram, set()).add(f"{source}: {text[:60]!r}")

    def repetition_reason(self, text: str) -> str | None:
        """Return why the question is a repetition; None if it is not."""
        words = _words(text)
        if found := self._exact.get(" ".join(words)):
            return f"asked in {found}"
        ngrams = list(_ngrams(words))
        hits = Counter(source for ngram in ngrams for source in self._ngrams.get(ngram, ()))
        for source, count in hits.most_common(1):
            if count / len(ngrams) >= SHARED_NGRAMS:
                return f"{count} of its {len(ngrams)} word {NGRAM_WORDS}-grams stand in {source}"
        return None


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _ngrams(words: list[str]) -> Iterator[tuple[str, ...]]:
    return (tuple(words[i : i + NGRAM_WORDS]) for i in range(len(words) - NGRAM_WORDS + 1))


def _title(source: QuestionSource) -> str:
    return str(source.hub or source.file or source.python)


def _rows(source: QuestionSource) -> Iterator[Mapping[str, Any]]:
    names = [
        name for name in (source.question, source.id, source.trace, source.domain_field) if name
    ]
    if source.file:
        rows: Iterable[Mapping[str, Any]] = (row for _, row in json_lines(source.file))
    else:
        rows = (
            _hub_rows(source)
            if source.hub
            else import_object(str(source.python))(**source.arguments)
        )
    for number, row in enumerate(rows):
        if number == source.limit:
            return
        if missing := [name for name in names if name not in row]:
            raise InvalidRequest(
                f"{_title(source)}, row {number + 1}, has no field {', '.join(missing)}",
                remedy=f"it has {', '.join(row)}: name one of those in the configuration",
            )
        yield row


def _hub_rows(source: QuestionSource) -> Iterable[Mapping[str, Any]]:
    from datasets import load_dataset  # slow to import and used only here

    try:
        rows: Iterable[Mapping[str, Any]] = load_dataset(
            source.hub, source.hub_config, split=source.hub_split, revision=source.revision
        )
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InvalidRequest(
            f"cannot load dataset {source.hub!r}: {reason}",
            remedy="give a dataset id or folder, its hub_config and hub_split",
        ) from error
    return rows
