"""Clusters segments by bidirectional entailment.

As in semantic entropy (Kuhn et al., 2023; Farquhar et al., 2024): two segments mean the same if each entails the other
after their context. Entailment is not transitive; `Linkage` defines what a cluster is then.
"""

from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, Protocol

from pydantic import Field

from semspec.errors import Mismatch
from semspec.training.clustering.equivalence import Alternatives
from semspec.training.clustering.nli import NliConfig, NliModel, TextPair, TokenIds, Verdict

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

    def encode(self, context: str, text: str) -> TokenIds:
        """One side of a pair."""
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
    num_forwards: int = 0
    """Ordered pairs the NLI model has judged."""
    num_forwards_saved: int = 0
    """Reverse directions that the forward verdict made unnecessary."""


Question = Generator[TextPair, Verdict, bool]
"""A generator that yields pairs, receives their verdicts, and returns whether two texts mean the same."""
Walk = Generator[TextPair, Verdict, list[int]]
"""The same for a whole group; returns a cluster number for each distinct text."""


class EntailmentEquivalence:
    """Equal cluster numbers mean entailment both ways; see `semspec.training.clustering.equivalence.Equivalence`.

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
    def load(cls, config: EntailmentConfig) -> "EntailmentEquivalence":
        """Raises: Mismatch when the model lacks a label that the settings need."""
        model = NliModel.load(config)
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

    def clusters(self, groups: Sequence[Alternatives]) -> list[list[int]]:
        own_texts = [distinct_texts(group.segments) for group in groups]
        found = self._in_lock_step([self._walk(*both) for both in zip(groups, own_texts, strict=True)])
        self.counts.num_segments += sum(len(group.segments) for group in groups)
        self.counts.num_distinct += sum(map(len, own_texts))
        by_text = [dict(zip(texts, own, strict=True)) for texts, own in zip(own_texts, found, strict=True)]
        return [
            in_order_of_appearance([own[normalized(segment)] for segment in group.segments])
            for group, own in zip(groups, by_text, strict=True)
        ]

    def _in_lock_step(self, walks: Sequence[Walk]) -> list[list[int]]:
        """Run all walks concurrently to their ends; pairs requested at the same time share batches."""
        known: dict[TextPair, Verdict] = {}
        wanted: dict[int, TextPair] = {}
        results: list[list[int]] = [[] for _ in walks]

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
        context = context_of(group) if self._with_context else ""
        sides = [self._judge.encode(context, text) for text in texts.values()]
        words = [Counter(key.split()) for key in texts]
        clusters: list[int] = []
        for new, key in enumerate(texts):
            joined = (yield from self._joined(new, clusters, sides, words)) if key else []
            cluster = min(joined, default=new)
            clusters = [cluster if other in joined else other for other in clusters]
            clusters.append(cluster)
        return clusters

    def _joined(
        self, new: int, clusters: Sequence[int], sides: Sequence[TokenIds], words: Sequence[Counter[str]]
    ) -> Generator[TextPair, Verdict, list[int]]:
        """The clusters that a new text belongs to: at most one with representatives, else all that it links.

        A cluster is identified by the index of its first member.
        """
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
        """Sides that are equal after truncation count as the same."""
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


def in_order_of_appearance(clusters: Sequence[int]) -> list[int]:
    numbers = {cluster: number for number, cluster in enumerate(dict.fromkeys(clusters))}
    return [numbers[cluster] for cluster in clusters]


def _num_common(one: Counter[str], other: Counter[str]) -> int:
    return (one & other).total()
