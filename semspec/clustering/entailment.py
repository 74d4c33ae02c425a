"""Clusters segments by bidirectional entailment.

As in semantic entropy (Kuhn et al., 2023; Farquhar et al., 2024): two segments mean the same if each entails the other
after their context. Entailment is not transitive; `Linkage` defines what a cluster is then.
"""

from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, Protocol

from pydantic import Field

from semspec.clustering.equivalence import Alternatives, in_order_of_appearance
from semspec.clustering.nli import NliConfig, NliModel, TextPair, TokenIds, Verdict
from semspec.errors import Mismatch

Linkage = Literal["representative", "components"]
"""representative: each member of a cluster is equivalent to its first member, never only through a chain. components:
all pairs are compared, and chains merge."""


class EntailmentConfig(NliConfig):
    """Settings of clustering by entailment."""

    strict: bool = Field(
        True,
        description="both directions must be entailment; false: no contradiction in either, and not both neutral",
    )
    linkage: Linkage = Field(
        "representative", description="compare with each cluster's first member; components: all pairs, chains merge"
    )
    with_context: bool = Field(True, description="read each segment after the question and the reasoning so far")


class Judge(Protocol):
    """Classifies pairs of texts."""

    def encode(self, context: str, texts: Sequence[str]) -> list[TokenIds | None]:
        """One side of a pair for each text, all with the same context before it; None for a text that is too long."""
        ...

    def judge(self, pairs: Sequence[TextPair]) -> list[Verdict]:
        """The relation of each premise to its hypothesis."""
        ...


@dataclass(slots=True)
class Counts:
    """Costs of clustering."""

    num_segments: int = 0
    num_distinct: int = 0
    """Texts left after duplicates are merged."""
    num_too_long: int = 0
    """Segments that do not fit into the NLI model's window."""
    num_forwards: int = 0
    """Ordered pairs the NLI model has judged."""
    num_forwards_saved: int = 0
    """Reverse directions that the forward verdict made unnecessary."""


Question = Generator[TextPair, Verdict, bool]
"""A generator that yields pairs, receives their verdicts, and returns whether two texts mean the same."""
Walk = Generator[TextPair, Verdict, list[int | None]]
"""The same for a whole group; returns a cluster number for each distinct text, None for one that is too long."""


class EntailmentEquivalence:
    """Equal cluster numbers mean entailment both ways; see `semspec.clustering.equivalence.Equivalence`.

    All texts of a group are read after the same end of the context. A text too long for that has no cluster: what was
    cut off might make the difference, and a cluster of its own would state that no other text has its meaning.

    Texts that differ only in white space or final punctuation are equal without a forward pass; texts without a word
    form one cluster. Distinct texts are visited by descending frequency, ties by first appearance. With
    representatives, a text joins the first equivalent one, tested by descending number of common words (ties: older
    clusters first); the representative is the premise of the first direction.
    """

    def __init__(
        self, judge: Judge, strict: bool = True, linkage: Linkage = "representative", with_context: bool = True
    ) -> None:
        self._judge, self._strict, self._linkage, self._with_context = judge, strict, linkage, with_context
        self.counts = Counts()

    @classmethod
    def load(cls, config: EntailmentConfig, max_segment_tokens: int = 0) -> "EntailmentEquivalence":
        """`max_segment_tokens`: of the segments to compare, in their writers' tokens. Raises: Mismatch when the model
        lacks a label that the settings need, or its window a quarter of that: most segments would not fit."""
        model = NliModel.load(config)
        longest = model.longest_text(config.with_context)
        if longest < max(1, max_segment_tokens / 4):
            raise Mismatch(
                f"{config.model} compares texts of at most {longest} tokens, segments have up to {max_segment_tokens}; "
                "raise equivalence.max_tokens, lower context_tokens, or take an NLI model with a longer window"
            )
        if not config.strict and not model.knows_contradiction:
            raise Mismatch(
                f"{config.model} has no contradiction label among {model.labels}, which strict: false needs; "
                "set strict: true, or name it in contradiction_label"
            )
        return cls(model, config.strict, config.linkage, config.with_context)

    def take_counts(self) -> dict[str, int]:
        """The counts since the last call."""
        taken, self.counts = self.counts, Counts()
        return asdict(taken)

    def clusters(self, groups: Sequence[Alternatives]) -> list[list[int | None]]:
        own_texts = [distinct_texts(group.segments) for group in groups]
        found = self._in_lock_step([self._walk(*both) for both in zip(groups, own_texts, strict=True)])
        by_text = [dict(zip(texts, own, strict=True)) for texts, own in zip(own_texts, found, strict=True)]
        clusters = [
            in_order_of_appearance([own[normalized(segment)] for segment in group.segments])
            for group, own in zip(groups, by_text, strict=True)
        ]
        self.counts.num_segments += sum(map(len, clusters))
        self.counts.num_distinct += sum(map(len, own_texts))
        self.counts.num_too_long += sum(own.count(None) for own in clusters)
        return clusters

    def _in_lock_step(self, walks: Sequence[Walk]) -> list[list[int | None]]:
        """Run all walks concurrently to their ends; pairs requested at the same time share batches."""
        known: dict[TextPair, Verdict] = {}
        wanted: dict[int, TextPair] = {}
        results: list[list[int | None]] = [[] for _ in walks]

        def resume(number: int, verdict: Verdict | None) -> None:
            try:
                wanted[number] = walks[number].send(verdict) if verdict else next(walks[number])
            except StopIteration as stop:
                wanted.pop(number, None)
                results[number] = stop.value

        for number in range(len(walks)):
            resume(number, None)
        while wanted:
            new = list(dict.fromkeys(pair for pair in wanted.values() if pair not in known))
            known |= zip(new, self._judge.judge(new), strict=True)
            self.counts.num_forwards += len(new)
            for number, pair in list(wanted.items()):
                resume(number, known[pair])
        return results

    def _walk(self, group: Alternatives, texts: dict[str, str]) -> Walk:
        encoded = self._judge.encode(context_of(group) if self._with_context else "", list(texts.values()))
        sides = {key: side for key, side in zip(texts, encoded, strict=True) if side is not None}
        numbers = dict(zip(sides, (yield from self._numbers(sides)), strict=True))
        return [numbers.get(key) for key in texts]

    def _numbers(self, sides: dict[str, TokenIds]) -> Generator[TextPair, Verdict, list[int]]:
        """A cluster for each text: the index of its first member."""
        words, tokens = [Counter(key.split()) for key in sides], list(sides.values())
        clusters: list[int] = []
        for new, key in enumerate(sides):
            joined = (yield from self._joined(new, clusters, tokens, words)) if key else []
            cluster = min(joined, default=new)
            clusters = [cluster if other in joined else other for other in clusters]
            clusters.append(cluster)
        return clusters

    def _joined(
        self, new: int, clusters: Sequence[int], sides: Sequence[TokenIds], words: Sequence[Counter[str]]
    ) -> Generator[TextPair, Verdict, list[int]]:
        """The clusters that a new text belongs to: at most one with representatives, else all that it links."""
        joined: list[int] = []
        is_chain = self._linkage == "components"
        candidates = range(new) if is_chain else sorted(set(clusters))
        for other in sorted(candidates, key=lambda other: -_num_common(words[other], words[new])):
            is_known = clusters[other] in joined or not words[other]
            if not is_known and (yield from self._is_same(sides[other], sides[new])):
                joined.append(clusters[other])
                if not is_chain:
                    break
        return joined

    def _is_same(self, one: TokenIds, other: TokenIds) -> Question:
        """Sides of equal tokens count as the same."""
        if one == other:
            return True
        forward = yield one, other
        if forward is not Verdict.ENTAILMENT if self._strict else forward is Verdict.CONTRADICTION:
            self.counts.num_forwards_saved += 1
            return False
        backward = yield other, one
        if self._strict:
            return backward is Verdict.ENTAILMENT
        return backward is not Verdict.CONTRADICTION and Verdict.ENTAILMENT in (forward, backward)


def context_of(group: Alternatives) -> str:
    """The question, a blank line, the reasoning so far, and white space for the next segment to follow."""
    context = f"{group.question}\n\n{group.reasoning}"
    return context if context[-1:].isspace() else f"{context} "


def normalized(segment: str) -> str:
    """The segment without redundant white space and final punctuation. Case is kept, since it may matter."""
    return " ".join(segment.split()).rstrip(" .,;:")


def distinct_texts(segments: Sequence[str]) -> dict[str, str]:
    """The first text of each normal form, by that form, most frequent first."""
    counts = Counter(map(normalized, segments))
    first = {normalized(segment): segment.strip() for segment in reversed(segments)}
    return {key: first[key] for key, _ in counts.most_common()}


def _num_common(one: Counter[str], other: Counter[str]) -> int:
    return (one & other).total()
