"""Trees of tokens: alternatives after one context that one forward pass feeds, each token attending to its own path."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from semspec.engine.logits import draw_each, draw_token
from semspec.engine.tokenization import ModelTokenizer
from semspec.types import Proposal, SamplingParams

MAX_TREE_TOKENS = 1024
"""Size above which a tree is verified as a chain: its mask grows with the square."""


class Tree:
    """The last tokens of a sequence, of which each follows its parent instead of the token before it."""

    def __init__(self, start: int, parents: Sequence[int]) -> None:
        """`start`: number of tokens before the tree. `parents[i]`: index in the tree of the token that token i follows,
        less than i; -1: the token before the tree."""
        self.start, self.parents = start, parents
        self.depths: list[int] = []
        """Number of tokens of the tree before each on its path."""
        self._paths = torch.eye(len(parents), dtype=torch.bool)
        """`[num_tokens, num_tokens]`: whether the second token is on the path to the first."""
        for index, parent in enumerate(parents):
            self.depths.append(0 if parent < 0 else self.depths[parent] + 1)
            if parent >= 0:
                self._paths[index] |= self._paths[parent]

    def positions(self, start: int, end: int) -> list[int]:
        """Positions of tokens `start` to `end` of the sequence: alternatives have the same."""
        own = self.depths[max(0, start - self.start) : max(0, end - self.start)]
        return [*range(start, min(end, self.start)), *(self.start + depth for depth in own)]

    def hidden(self, start: int, end: int) -> Tensor:
        """Bool `[end - start, end]`: which tokens of the sequence tokens `start` to `end` do not attend to."""
        hidden = torch.ones(end - start, end, dtype=torch.bool).triu_(start + 1)
        first = max(start, self.start)
        hidden[first - start :, self.start :] = ~self._paths[first - self.start : end - self.start, : end - self.start]
        return hidden


def as_chain(proposal: Proposal) -> Proposal:
    """The path of a tree that takes the first alternative everywhere; a chain as it is."""
    path, parents = list[int](), proposal.parents
    if not parents:
        return proposal
    for index, parent in enumerate(parents):
        if parent == (path[-1] if path else -1):
            path.append(index)
    token_ids = tuple(proposal.token_ids[index] for index in path)
    return replace(
        proposal, token_ids=token_ids, distributions=tuple(proposal.distributions[index] for index in path), parents=()
    )


def verify_tree(
    logits: Tensor, drafted: Sequence[int], tree: Tree, sampling: SamplingParams, ended: ModelTokenizer | None = None
) -> tuple[list[int], list[int]]:
    """The accepted tokens plus one recovered or bonus token, and the indices of the accepted ones.

    `logits`: `[num_drafted + 1, vocab_size]`, row 0 before the tree, row i + 1 after `drafted[i]`. The target draws a
    token at each position, as `draw_token` does; it is accepted as long as it is in the tree. So the tokens are those
    that the target would write alone, and the tree changes none. `ended`: as in `draw_token`.
    """
    positions = [tree.start, *(tree.start + depth + 1 for depth in tree.depths)]
    drawn = draw_each(logits, [sampling] * len(positions), positions)
    if ended:
        drawn[0] = draw_token(logits[0], sampling, tree.start, ended)
    children = {(parent, token): index for index, (parent, token) in enumerate(zip(tree.parents, drafted, strict=True))}
    path, last = list[int](), -1
    while (child := children.get((last, drawn[last + 1]))) is not None:
        path.append(child)
        last = child
    return [*(drafted[index] for index in path), drawn[last + 1]], path


def paths_of(parents: Sequence[int]) -> list[list[int]]:
    """The indices on the path to each token without a child; one empty path of an empty tree."""
    paths: dict[int, list[int]] = {-1: []}
    for index, parent in enumerate(parents):
        paths[index] = [*paths[parent], index]
    inner = set(parents) if parents else set()
    return [path for index, path in paths.items() if index not in inner]
