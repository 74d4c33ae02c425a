"""Answers to simulate: the segments that the models would write and whether each draft is accepted."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from semspec.errors import InvalidRequest
from semspec_bench.record import Record


@dataclass(frozen=True, slots=True)
class Planned:
    """One segment of an answer, as the draft and as the target would write it."""

    draft_tokens: int
    target_tokens: int
    is_accepted: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """The segments of an answer in order; the last ends it."""

    prompt_tokens: int
    segments: tuple[Planned, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """Answers by stated distributions, so that all strategies write equally many tokens."""

    segment_tokens: int = 40
    """Mean length: uniform from half of it to one and a half."""
    acceptance: float = 0.85
    """Share of all segments whose drafts are accepted, in random order."""
    answer_tokens: int = 800
    """The last segment is cut, so that each answer has exactly so many."""
    prompt_tokens: int = 100

    def answers(self, num_answers: int, seed: int = 0) -> list[Answer]:
        """Raises: InvalidRequest."""
        self._check()
        random = Random(seed)
        lengths = [self._lengths(random) for _ in range(num_answers)]
        num_segments = sum(map(len, lengths))
        num_accepted = round(self.acceptance * num_segments)
        verdicts = [True] * num_accepted + [False] * (num_segments - num_accepted)
        random.shuffle(verdicts)
        left = iter(verdicts)
        return [
            Answer(self.prompt_tokens, tuple(Planned(n, n, next(left)) for n in own))
            for own in lengths
        ]

    def _lengths(self, random: Random) -> list[int]:
        lengths, left = [], self.answer_tokens
        shortest = max(1, self.segment_tokens // 2)
        while left > 0:
            lengths.append(min(left, random.randint(shortest, 2 * self.segment_tokens - shortest)))
            left -= lengths[-1]
        return lengths

    def _check(self) -> None:
        limits = {"segment_tokens": 512, "answer_tokens": 1 << 20, "prompt_tokens": 1 << 20}
        for name, limit in limits.items():
            if not 1 <= (value := getattr(self, name)) <= limit:
                raise InvalidRequest(f"{name} is {value}; choose 1 to {limit}")
        if not 0 <= self.acceptance <= 1:
            raise InvalidRequest(f"acceptance is {self.acceptance:g}; choose 0 to 1")


def recorded(records: Sequence[Record], label: str) -> list[Answer]:
    """The answers of a configuration in a run, segment by segment. Raises: InvalidRequest when it has none."""
    answers = [
        Answer(record.num_prompt_tokens, tuple(_planned(row) for row in record.trace))
        for record in records
        if record.label == label and record.trace
    ]
    if not answers:
        raise InvalidRequest(f"the run has no traces of {label}; name a configuration of the run")
    return answers


def _planned(row: dict[str, object]) -> Planned:
    """A segment from its record; the draft's length is known only where it drafted."""
    own, rejected = row["num_tokens"], row.get("rejected")
    drafted = rejected["num_tokens"] if isinstance(rejected, dict) else own
    if not isinstance(own, int) or not isinstance(drafted, int):
        raise InvalidRequest("a trace of the run has no numbers of tokens; make the run again")
    return Planned(drafted, own, row["verdict"] != "rewritten")
