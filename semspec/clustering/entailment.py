"""Clusters segments by bidirectional entailment.

As in semantic entropy (Kuhn et al., 2023; Farquhar et al., 2024): two segments mean the same if each entails the other
after their context. Entailment is not transitive: members of a cluster are equivalent to its first, its representative.
"""

from collections import Counter
from collections.abc import Generator, Sequence
from typing import Protocol

from semspec.clustering.equivalence import Alternatives, in_order_of_appearance
from semspec.clustering.nli import EntailmentConfig, NliModel, TextPair, TokenIds
from semspec.errors import Mismatch


class Judge(Protocol):
    """Decides whether one text entails another."""

    def encode(self, context: str, texts: Sequence[str]) -> list[TokenIds | None]:
        """One side of a pair for each text, all with the same context before it; None for a text that is too long."""

    def judge(self, pairs: Sequence[TextPair]) -> list[bool]:
        """Whether each premise entails its hypothesis."""


Walk = Generator[TextPair, bool, list[int | None]]
"""Yields pairs, receives whether the first entails the second, and returns a cluster number for each distinct text of a
group, None for one that is too long."""


class EntailmentEquivalence:
    """Equal cluster numbers mean entailment both ways; see `semspec.clustering.equivalence.Equivalence`.

    All texts of a group are read after the same end of the context. A text too long for that has no cluster: what was
    cut off might make the difference, and a cluster of its own would state that no other text has its meaning.

    Texts that differ only in white space or final punctuation are equal without a forward pass; texts without a word
    form one cluster. Distinct texts are visited by descending frequency, ties by first appearance. A text joins the
    first equivalent representative, tested by descending number of common words (ties: older clusters first); the
    representative is the premise of the first direction.
    """

    def __init__(self, judge: Judge, with_context: bool = True) -> None:
        self._judge, self._with_context = judge, with_context
        self.counts = Counter[str]()
        """`num_forwards`: ordered pairs that the model has judged; `num_too_long`: segments beyond its window."""

    @classmethod
    def load(cls, config: EntailmentConfig, max_segment_tokens: int = 0) -> "EntailmentEquivalence":
        """`max_segment_tokens`: of the segments to compare, in their writers' tokens. Raises: Mismatch when the model
        has no label of entailment, or its window is under a quarter of that: most segments would not fit."""
        model = NliModel.load(config)
        longest = model.longest_text(config.with_context)
        if longest < max(1, max_segment_tokens / 4):
            raise Mismatch(
                f"{config.model} compares texts of at most {longest} tokens, segments have up to {max_segment_tokens}",
                remedy="raise equivalence.max_tokens, lower context_tokens, or take an NLI model with a longer window",
            )
        return cls(model, config.with_context)

    def take_counts(self) -> Counter[str]:
        """The counts since the last call."""
        taken, self.counts = self.counts, Counter()
        return taken

    def clusters(self, groups: Sequence[Alternatives]) -> list[list[int | None]]:
        own_texts = [distinct_texts(group.segments) for group in groups]
        found = self._in_lock_step(
            [self._walk(*both) for both in zip(groups, own_texts, strict=True)]
        )
        by_text = [
            dict(zip(texts, own, strict=True)) for texts, own in zip(own_texts, found, strict=True)
        ]
        clusters = [
            in_order_of_appearance([own[normalized(segment)] for segment in group.segments])
            for group, own in zip(groups, by_text, strict=True)
        ]
        self.counts["num_too_long"] += sum(own.count(None) for own in clusters)
        return clusters

    def _in_lock_step(self, walks: Sequence[Walk]) -> list[list[int | None]]:
        """Run all walks concurrently to their ends; pairs requested at the same time share batches."""
        known: dict[TextPair, bool] = {}
        wanted: dict[int, TextPair] = {}
        results: list[list[int | None]] = [[] for _ in walks]

        def resume(number: int, entails: bool | None) -> None:
            try:
                wanted[number] = walks[number].send(entails)  # type: ignore[arg-type]  # None starts it
            except StopIteration as stop:
                wanted.pop(number, None)
                results[number] = stop.value

        for number in range(len(walks)):
            resume(number, None)
        while wanted:
            new = list(dict.fromkeys(pair for pair in wanted.values() if pair not in known))
            known |= zip(new, self._judge.judge(new), strict=True)
            self.counts["num_forwards"] += len(new)
            for number, pair in list(wanted.items()):
                resume(number, known[pair])
        return results

    def _walk(self, group: Alternatives, texts: dict[str, str]) -> Walk:
        encoded = self._judge.encode(
            context_of(group) if self._with_context else "", list(texts.values())
        )
        sides = {key: side for key, side in zip(texts, encoded, strict=True) if side is not None}
        numbers = dict(zip(sides, (yield from self._numbers(sides)), strict=True))
        return [numbers.get(key) for key in texts]

    def _numbers(self, sides: dict[str, TokenIds]) -> Generator[TextPair, bool, list[int]]:
        """A cluster for each text: the index of its first member, its representative."""
        words, tokens = [Counter(key.split()) for key in sides], list(sides.values())
        clusters: list[int] = []
        for new in range(len(tokens)):
            candidates = [other for other in sorted(set(clusters)) if words[other] and words[new]]
            cluster = new
            for other in sorted(candidates, key=lambda other: -(words[other] & words[new]).total()):
                one, two = tokens[other], tokens[new]
                if one == two or ((yield one, two) and (yield two, one)):
                    cluster = other
                    break
            clusters.append(cluster)
        return clusters


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
