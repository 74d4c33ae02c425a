"""The dynamic part of a datastore: answers of past and running generations, in memory, within a bound."""

from collections import OrderedDict
from collections.abc import Hashable
from itertools import count

from semspec.retrieval.ngrams import LONGEST_MATCH, MAX_MATCHES, NO_MATCH, Match

SHORTEST_MATCH = 3
"""Length of the n-grams in tokens by which places are found; shorter ones match nothing."""


class LearnedAnswers:
    """At most `max_tokens` tokens of answers, the one that grew least recently dropped first. Not thread-safe."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._answers: OrderedDict[int, str] = OrderedDict()
        """By number, one character a token; the one that grew last comes last."""
        self._growing: OrderedDict[Hashable, int] = OrderedDict()
        """Generation -> number of its answer."""
        self._places: dict[str, list[tuple[int, int]]] = {}
        """N-gram -> (number of the answer, place of the token that follows it), the oldest first."""
        self._numbers = count()
        self.num_tokens = 0

    def learn(self, generation: Hashable, answer: str) -> None:
        """Note what the answer of `generation` is by now.

        It extends the one noted before; if it does not, as with other draws, both are kept.
        """
        number = self._growing.get(generation, -1)
        known = self._answers.get(number, "")
        if known.startswith(answer) or len(answer) > self._max_tokens:
            return
        if not known or not answer.startswith(known):
            number, known = next(self._numbers), ""
        self._answers[number] = answer
        self._answers.move_to_end(number)
        self._growing[generation] = number
        self._growing.move_to_end(generation)
        self.num_tokens += len(answer) - len(known)
        for place in range(max(SHORTEST_MATCH, len(known)), len(answer)):
            places = self._places.setdefault(answer[place - SHORTEST_MATCH : place], [])
            places.append((number, place))
            del places[:-MAX_MATCHES]
        while self.num_tokens > self._max_tokens:
            self._forget()

    def match(self, context: str, num_tokens: int) -> Match:
        """The longest n-gram that ends `context` and occurs in an answer, with up to `num_tokens` following tokens."""
        ending = context[-LONGEST_MATCH:]
        places = self._places.get(context[-SHORTEST_MATCH:])
        if not places:
            return NO_MATCH
        lengths = [_num_common(ending, self._answers[number][:place]) for number, place in places]
        longest = max(lengths)
        found = [place for place, length in zip(places, lengths, strict=True) if length == longest]
        answers = self._answers
        continuations = (answers[number][place : place + num_tokens] for number, place in reversed(found))
        return Match(longest, tuple(continuations))

    def _forget(self) -> None:
        """Drop the answer that grew least recently."""
        number, answer = self._answers.popitem(last=False)
        self.num_tokens -= len(answer)
        for place in range(SHORTEST_MATCH, len(answer)):
            ngram = answer[place - SHORTEST_MATCH : place]
            left = [one for one in self._places.get(ngram, ()) if one[0] != number]
            if left:
                self._places[ngram] = left
            else:
                self._places.pop(ngram, None)
        while self._growing and next(iter(self._growing.values())) not in self._answers:
            self._growing.popitem(last=False)


def _num_common(one: str, other: str) -> int:
    """Length of the common ending of `one`, at most `LONGEST_MATCH` tokens, and `other`."""
    length = min(len(one), len(other))
    while not other.endswith(one[len(one) - length :]):
        length -= 1
    return length
