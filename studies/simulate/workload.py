"""Answers to simulate: the segments that the models would write and whether each draft is accepted."""

from dataclasses import dataclass
from random import Random


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
    """The last segment is cut, so that each answer has exactly this many."""
    prompt_tokens: int = 100

    def answers(self, num_answers: int, seed: int = 0) -> list[Answer]:
        random = Random(seed)
        lengths = [self._lengths(random) for _ in range(num_answers)]
        num_segments = sum(map(len, lengths))
        num_accepted = round(self.acceptance * num_segments)
        verdicts = [True] * num_accepted + [False] * (num_segments - num_accepted)
        random.shuffle(verdicts)
        left = iter(verdicts)
        return [
            Answer(self.prompt_tokens, tuple(Planned(n, n, next(left)) for n in answer_lengths))
            for answer_lengths in lengths
        ]

    def _lengths(self, random: Random) -> list[int]:
        lengths, left = [], self.answer_tokens
        shortest = max(1, self.segment_tokens // 2)
        while left > 0:
            lengths.append(min(left, random.randint(shortest, 2 * self.segment_tokens - shortest)))
            left -= lengths[-1]
        return lengths
