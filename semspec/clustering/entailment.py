"""Clusters segments by bidirectional entailment.

As in semantic entropy (Kuhn et al., 2023; Farquhar et al., 2024), two segments mean the same if each entails the other
after their context. Entailment is not transitive: members of a cluster are equivalent to its representative, the first.
"""

from collections import Counter
from collections.abc import Generator, Sequence

from semspec.clustering.equivalence import Alternatives, in_order_of_appearance
from semspec.clustering.nli import EntailmentConfig, NliModel, TextPair, TokenIds
from semspec.errors import Mismatch

Clustering = Generator[TextPair, bool, list[int | None]]
"""The clustering of a group: yields pairs, receives whether the first text entails the second, and returns a cluster
number for each distinct text, None for one that is too long."""


class PairCounts:
    """Counts of the pairs that an equivalence has judged."""

    def __init__(self) -> None:
        self.counts = Counter[str]()
        """`num_forwards`: ordered pairs that the model has judged; `num_too_long`: segments beyond its window."""

    def take_counts(self) -> Counter[str]:
        """Return the counts since the last call."""
        taken, self.counts = self.counts, Counter()
        return taken


class EntailmentEquivalence(PairCounts):
    """Clusters segments that entail each other; see `semspec.clustering.equivalence.Equivalence`.

    All texts of a group are read after the same end of the context. A text that is too long for this has no cluster:
    its meaning might depend on a part that is not read, and a separate cluster would state that no other text has the
    same meaning.

    Texts that differ only in white space or final punctuation are equal without a forward pass; texts without a word
    form one cluster. Distinct texts are compared by descending frequency, ties by first appearance. A text joins the
    first equivalent representative, by descending number of common words (ties: older clusters first). The
    representative is the premise of the first direction.
    """

    def __init__(self, judge: NliModel, with_context: bool = True) -> None:
        super().__init__()
        self._judge, self._with_context = judge, with_context

    @classmethod
    def load(cls, config: EntailmentConfig, max_segment_tokens: int = 0) -> "EntailmentEquivalence":
        """Load the NLI model. `max_segment_tokens`: of the segments, in their writers' tokens.

        Raises: Mismatch when the model has no label of entailment, or its window is under a quarter of
        `max_segment_tokens`, so that most segments would not fit.
        """
        model = NliModel.load(config)
        longest = model.longest_text(config.with_context)
        if longest < max(1, max_segment_tokens / 4):
            raise Mismatch(
                f"{config.model} compares texts of at most {longest} tokens, segments have up to {max_segment_tokens}",
                remedy="raise equivalence.max_tokens, lower context_tokens, or take an NLI model with a longer window",
            )
        return cls(model, config.with_context)

    def clusters(self, groups: Sequence[Alternatives]) -> list[list[int | None]]:
        texts = [distinct_texts(group.segments) for group in groups]
        found = self._run_together(
            [self._cluster(group, distinct) for group, distinct in zip(groups, texts, strict=True)]
        )
        clusters = []
        for group, distinct, numbers in zip(groups, texts, found, strict=True):
            by_text = dict(zip(distinct, numbers, strict=True))
            meanings = [by_text[normalized(segment)] for segment in group.segments]
            clusters.append(in_order_of_appearance(meanings))
        self.counts["num_too_long"] += sum(numbers.count(None) for numbers in clusters)
        return clusters

    def _run_together(self, clusterings: Sequence[Clustering]) -> list[list[int | None]]:
        """Run all clusterings to their ends at once, so that the pairs of one round share batches."""
        known: dict[TextPair, bool] = {}
        wanted: dict[int, TextPair] = {}
        results: list[list[int | None]] = [[] for _ in clusterings]

        def resume(number: int, entails: bool | None) -> None:
            try:
                wanted[number] = clusterings[number].send(entails)  # type: ignore[arg-type]  # None starts it
            except StopIteration as stop:
                wanted.pop(number, None)
                results[number] = stop.value

        for number in range(len(clusterings)):
            resume(number, None)
        while wanted:
            new = list(dict.fromkeys(pair for pair in wanted.values() if pair not in known))
            known |= zip(new, self._judge.judge(new), strict=True)
            self.counts["num_forwards"] += len(new)
            for number, pair in list(wanted.items()):
                resume(number, known[pair])
        return results

    def _cluster(self, group: Alternatives, texts: dict[str, str]) -> Clustering:
        encoded = self._judge.encode(
            context_of(group) if self._with_context else "", list(texts.values())
        )
        sides = {key: side for key, side in zip(texts, encoded, strict=True) if side is not None}
        numbers = dict(zip(sides, (yield from self._numbers(sides)), strict=True))
        return [numbers.get(key) for key in texts]

    def _numbers(self, sides: dict[str, TokenIds]) -> Generator[TextPair, bool, list[int]]:
        """Return the cluster of each text: the index of its representative."""
        words, tokens = [Counter(key.split()) for key in sides], list(sides.values())
        clusters: list[int] = []
        for new in range(len(tokens)):
            candidates = [other for other in sorted(set(clusters)) if words[other] and words[new]]
            cluster = new
            for other in sorted(candidates, key=lambda other: -(words[other] & words[new]).total()):
                old_text, new_text = tokens[other], tokens[new]
                if old_text == new_text or (
                    (yield old_text, new_text) and (yield new_text, old_text)
                ):
                    cluster = other
                    break
            clusters.append(cluster)
        return clusters


def context_of(group: Alternatives) -> str:
    """Return the question, a blank line, the reasoning so far, and white space before the next segment."""
    context = f"{group.question}\n\n{group.reasoning}"
    return context if context[-1:].isspace() else f"{context} "


def normalized(segment: str) -> str:
    """Return the segment without redundant white space and final punctuation. Case is kept, because it may matter."""
    return " ".join(segment.split()).rstrip(" .,;:")


def distinct_texts(segments: Sequence[str]) -> dict[str, str]:
    """Return the first text of each normal form, by that form, the most frequent first."""
    counts = Counter(map(normalized, segments))
    first = {normalized(segment): segment.strip() for segment in reversed(segments)}
    return {key: first[key] for key, _ in counts.most_common()}
