"""The calls of our engine as generators: each yields what it has fed, and its results. See `semspec.engine.steps`."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from time import perf_counter

import torch
from torch import Tensor

from semspec.engine.causal_lm import CausalLM
from semspec.engine.conversation import option_ids
from semspec.engine.logits import draw_token, scores_of, token_logprob
from semspec.engine.segmentation import TokenSegmenter, ended_by_look_ahead
from semspec.engine.shaping import Shaping
from semspec.engine.speculative import (
    check_token_ids,
    draw_with_distribution,
    gated_tokens,
    rejection_sample,
    segmenter_of,
    shared_part,
    state_before,
)
from semspec.engine.steps import Feed, Output, Prefix, PrefixCache, Steps, fed
from semspec.engine.tokenization import ModelTokenizer
from semspec.engine.tree import MAX_TREE_TOKENS, Tree, as_chain, verify_tree
from semspec.probes.projection import Projections
from semspec.types import (
    ChoiceScores,
    Context,
    Distribution,
    GeneratedSegment,
    GenerationParams,
    Proposal,
    Segment,
    SegmentScore,
    TokenLogprob,
    VerifiedTokens,
    Writer,
)


class Calls:
    """The calls to one model. Each runs on the worker's thread."""

    def __init__(self, lm: CausalLM, writer: Writer, cache: PrefixCache, projections: Projections) -> None:
        self._lm, self._writer, self._cache, self._projections = lm, writer, cache, projections
        self._tokenizer: ModelTokenizer = lm.tokenizer

    @contextmanager
    def _prefix(self, tokens: list[int], session: str) -> Iterator[Prefix]:
        """A cached prefix of `tokens`, returned to the cache when the call ends or fails."""
        prefix = self._cache.take(tokens, session)
        try:
            yield prefix
        finally:
            num_tokens = prefix.kv.num_tokens  # fewer than the prefix has after an eviction
            if num_tokens <= len(prefix.tokens):  # otherwise a forward pass failed midway and the cache is invalid
                prefix.crop(num_tokens)
                self._cache.give(prefix)

    def _rows_after(
        self,
        prefix: Prefix,
        tokens: Sequence[int],
        following: Sequence[int],
        segments: Sequence[int] = (),
        wants_each: bool = False,
        tree: Tree | None = None,
    ) -> Generator[Feed, Output | None, tuple[Tensor, Sequence[Tensor]]]:
        """Feed the tokens that `prefix` lacks, and `following`. Returns logits `[len(following) + 1, vocab_size]`,
        after `tokens` and each token of `following`, and the states of `segments`: `following` cut at these lengths.
        `wants_each`: instead the states of each row's token, the first of them only if `prefix` lacked it, and none
        if `prefix` lacked more. `tree`: what the tokens of `following` follow; `prefix` is then to keep one path.
        """
        known = [prefix.logits[len(tokens)][None]] if len(prefix.tokens) == len(tokens) else []
        rest = [*tokens[len(prefix.tokens) :], *following]
        if not rest:
            return known[0], ()
        if wants_each and len(rest) <= len(following) + 1:  # not of a whole prompt, whose states need much memory
            segments = (1,) * len(rest)
        output = yield from fed(Feed(prefix, rest, len(following) + 1 - len(known), segments, tree=tree))
        rows = torch.cat([*known, output.rows])
        ends = () if wants_each else accumulate(segments[:-1], initial=0)
        for position in ends:  # where a later call may go on
            prefix.remember_logits(len(tokens) + position, rows[position])
        return rows, output.pooled

    def generate(
        self, context: Context, params: GenerationParams, shaping: Shaping | None = None
    ) -> Steps[GeneratedSegment]:
        tokens = self._tokenizer.context_ids(context)
        self._tokenizer.check_room(len(tokens), "context")
        segmenter = TokenSegmenter(self._tokenizer, self._writer, params, tokens)
        start = perf_counter()
        with self._prefix(tokens, params.session) as prefix:
            num_cached = len(prefix.tokens)
            if rest := tokens[num_cached:]:
                yield from fed(Feed(prefix, rest))
            logits, ended = prefix.logits[len(tokens)], None
            if shaping:  # one model writes all, so a token that ended a sentence is drawn again as it was
                logits = shaping.first()(logits)
            elif ended_by_look_ahead(context, params.segmentation):
                ended = self._tokenizer
            token = draw_token(logits, params.sampling, len(tokens), ended)
            while not segmenter.is_done:
                generated, token = yield from self._write_segment(prefix, token, segmenter, params, shaping)
                now = perf_counter()
                yield replace(generated, duration_ms=(now - start) * 1e3, num_cached_tokens=num_cached)
                start = now

    def _write_segment(
        self,
        prefix: Prefix,
        token: int,
        segmenter: TokenSegmenter,
        params: GenerationParams,
        shaping: Shaping | None = None,
    ) -> Generator[Feed, Output | None, tuple[GeneratedSegment, int]]:
        """The next segment after `prefix`, from its first `token` on, all of its tokens fed; and the token after it."""
        logprobs: list[TokenLogprob] = []
        total: Tensor | None = None
        segment = segmenter.end_before(token)
        while segment is None:
            if params.num_logprobs is not None:
                logits = prefix.logits[len(prefix.tokens)]
                logprobs.append(token_logprob(self._tokenizer, logits, token, params.num_logprobs))
            own = (1,) if params.want_states else ()
            shape = shaping.after(token) if shaping else None
            output = yield from fed(Feed(prefix, [token], segments=own, sampling=params.sampling, shape=shape))
            for one in output.pooled:
                total = one if total is None else total + one
            segment = segmenter.append(token)
            token = output.token
            segment = segment or segmenter.end_before(token)
        pooled = [] if total is None else [total / len(segment.token_ids)]
        states = next(iter(self._projections.states_of(pooled, params.projection)), None)
        told = None if params.num_logprobs is None else tuple(logprobs)
        return GeneratedSegment(segment, states, 0.0, told), token

    def score(
        self, context: Context, segments: Sequence[Segment], session: str, projection: str
    ) -> Steps[list[SegmentScore]]:
        tokens = self._tokenizer.context_ids(context)
        ids = self._tokenizer.segment_ids(segments)
        all_ids = [token for segment_ids in ids for token in segment_ids]
        self._tokenizer.check_room(len(tokens) + len(all_ids), "segments")
        start = perf_counter()
        with self._prefix(tokens, session) as prefix:
            num_cached = len(prefix.tokens)
            rows, pooled = yield from self._rows_after(prefix, tokens, all_ids, [len(one) for one in ids])
            scores = scores_of(ids, rows, self._projections.states_of(pooled, projection))
            duration_ms = (perf_counter() - start) * 1e3
            yield [replace(score, duration_ms=duration_ms, num_cached_tokens=num_cached) for score in scores]

    def propose(
        self, context: Context, open_ids: Sequence[int], params: GenerationParams, num_tokens: int
    ) -> Steps[Proposal]:
        check_token_ids(self._tokenizer, open_ids, "open_token_ids")
        tokens = [*self._tokenizer.context_ids(context), *open_ids]
        self._tokenizer.check_room(len(tokens), "context")
        start = perf_counter()
        with self._prefix(tokens, params.session) as prefix:
            drafted: list[int] = []
            distributions: list[Distribution] = []
            for _ in range(min(num_tokens, self._lm.info.max_context_tokens - len(tokens))):
                # Without the last token: the next call feeds it, with the target's token.
                if rest := [*tokens, *drafted][len(prefix.tokens) :]:
                    yield from fed(Feed(prefix, rest))
                position = len(prefix.tokens)
                token, distribution = draw_with_distribution(prefix.logits[position], params.sampling, position)
                drafted.append(token)
                distributions.append(distribution)
                if token in self._tokenizer.eos_ids:
                    break
            duration_ms = (perf_counter() - start) * 1e3
            yield Proposal(tuple(drafted), tuple(distributions), self._lm.info.tokenizer, duration_ms)

    def verify_tokens(
        self, context: Context, open_ids: Sequence[int], proposal: Proposal, params: GenerationParams
    ) -> Steps[VerifiedTokens]:
        context_ids = self._tokenizer.context_ids(context)
        segmenter = segmenter_of(self._tokenizer, self._writer, context_ids, open_ids, proposal, params)
        tokens = [*context_ids, *open_ids]
        tree = self._tree(proposal, len(tokens), segmenter.num_left)
        proposal = proposal if tree else as_chain(proposal)
        drafted = proposal.token_ids if tree else proposal.token_ids[: segmenter.num_left]
        start = perf_counter()
        with self._prefix(tokens, params.session) as prefix:
            num_cached = len(prefix.tokens)
            num_shared, distributions = shared_part(self._tokenizer, proposal)
            layer = proposal.state_layer
            mismatches: tuple[bool, ...] = ()
            try:
                rows, states = yield from self._rows_after(
                    prefix, tokens, drafted[:num_shared], wants_each=layer is not None, tree=tree
                )
                is_after_end = not open_ids and ended_by_look_ahead(context, params.segmentation)
                ended = self._tokenizer if is_after_end else None
                if params.gate is not None:
                    chosen, path, mismatches = gated_tokens(rows, drafted, params.gate, ended, proposal.parents)
                elif tree:
                    chosen, path = verify_tree(rows, drafted, tree, params.sampling, ended)
                else:
                    distributions = distributions[: len(drafted)]
                    chosen = rejection_sample(rows, drafted, distributions, params.sampling, len(tokens), ended)
                    path = list(range(len(chosen) - 1))
                num_taken = next((i for i, token in enumerate(chosen) if not segmenter.take(token)), len(chosen))
                num_accepted = min(num_taken, len(chosen) - 1)
                prefix.keep(len(tokens), path[:num_accepted])
            except BaseException:
                prefix.crop(len(tokens))  # what is fed after them may be no sequence
                raise
            after = [0, *(index + 1 for index in path)]  # rows
            prefix.remember_logits(len(prefix.tokens), rows[after[num_accepted]])
            duration_ms = (perf_counter() - start) * 1e3
            is_foreign = bool(drafted) and proposal.tokenizer != self._lm.info.tokenizer
            open_piece = segmenter.open_piece if is_foreign else None
            state = b"" if layer is None else state_before(after[num_taken - 1] - len(rows), states, layer)
            segments, open_ids = tuple(segmenter.segments), tuple(segmenter.open_ids)
            yield VerifiedTokens(
                segments, open_ids, num_accepted, duration_ms, open_piece, state, mismatches, num_cached
            )

    def _tree(self, proposal: Proposal, start: int, num_left: int) -> Tree | None:
        """The tree of a proposal; None for a chain, and for a tree that can only be verified as one."""
        if not 0 < len(proposal.parents) <= MAX_TREE_TOKENS or self._lm.decoder is None:
            return None
        tree, num_own = Tree(start, proposal.parents), shared_part(self._tokenizer, proposal)[0]
        return tree if num_own == len(proposal.token_ids) and max(tree.depths) < num_left else None

    def score_choices(
        self, context: Context, question: str, prefill: str, options: Sequence[str], session: str
    ) -> Steps[ChoiceScores]:
        tokens = self._tokenizer.context_ids(context)
        turn = self._tokenizer.question_ids(tokens, question, prefill)
        choice_ids = option_ids(self._tokenizer.raw, options)
        self._tokenizer.check_room(len(tokens) + len(turn), "context")
        start = perf_counter()
        with self._prefix(tokens, session) as prefix:
            rows, _ = yield from self._rows_after(prefix, tokens, turn)
            prefix.crop(len(tokens))  # remove the question: the next call continues from the context
            prefix.remember_logits(len(tokens), rows[0])
            probabilities = torch.softmax(rows[-1].float(), -1)
            likeliest = self._tokenizer.token_text(int(probabilities.argmax()))
            duration_ms = (perf_counter() - start) * 1e3
            yield ChoiceScores(tuple(probabilities[choice_ids].tolist()), likeliest, duration_ms)
