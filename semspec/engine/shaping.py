"""What a request changes of a copy of the logits before each draw: biases, penalties, a grammar by llguidance, and
end-of-sequence, which is not to be drawn yet."""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from threading import Lock, Thread
from time import thread_time
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from semspec.engine.requests import Generate
from semspec.engine.tokenization import ModelTokenizer
from semspec.errors import InternalError, InvalidField, InvalidRequest
from semspec.grammars.compiler import Compiled, Compiler
from semspec.grammars.limits import check_grammar
from semspec.grammars.turns import Turns
from semspec.types import GRAMMAR, Penalties

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from semspec.grammars.worker import Vocabulary

MAX_KEPT, MAX_KEPT_BYTES = 16, 64 << 20
"""Compiled grammars kept, and their bytes as compiled."""
NUM_COMPILING = 2
"""Grammars that this process compiles at once; one owner's compile one after another."""

_ONE_BY_ONE = '%llguidance {"no_forcing": true}'
"""Else the text that a grammar forces would be computed at once, though it has no end, as a list of lists of lists."""

_SPELLING = {bytes([byte]) for byte in (*b"\n", *range(0x20, 0x7F))}
"""A vocabulary with these tokens spells any JSON: other characters can be escaped."""

FIRST_MASKS_S, MASK_S = 0.5, 0.005
"""Seconds of CPU time for the masks of a call, in all and for each token: all other calls wait for them."""

Shape = Callable[[Tensor], Tensor]
"""Changed logits `[vocab_size]` for one draw."""

_log = logging.getLogger(__name__)


class Matcher:
    """The state of a grammar after some tokens. Not thread-safe."""

    def __init__(self, matcher: "LLMatcher", tokenizer: ModelTokenizer) -> None:
        self._matcher, self._tokenizer = matcher, tokenizer
        self._eos_ids = sorted(tokenizer.eos_ids)
        self._left_s = FIRST_MASKS_S

    def allowed(self) -> Tensor:
        """Whether each token may follow, bool `[num_embeddings]`: those of end-of-sequence iff the text is complete.
        Raises: InvalidRequest when the grammar is too complex; InternalError when it allows no token."""
        with self._limited():
            mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._left_s += MASK_S
        bits = torch.from_numpy(np.unpackbits(mask, bitorder="little").view(np.bool_))
        allowed = torch.zeros(self._tokenizer.num_embeddings, dtype=torch.bool)
        size = min(len(bits), len(allowed))
        allowed[:size] = bits[:size]
        allowed[self._eos_ids] = bool(bits[self._tokenizer.end_of_turn])
        if not allowed.any():
            raise InternalError("the grammar allows no token")
        return allowed

    def allowed_after(self, token: int) -> Tensor:
        """`allowed` once `token` is written."""
        if token not in self._tokenizer.eos_ids:
            with self._limited():
                self._matcher.consume_token(token)
        return self.allowed()

    @contextmanager
    def _limited(self) -> Iterator[None]:
        """Raises: InvalidRequest when the body ends with the grammar over its limits of time or size."""
        start = thread_time()
        yield
        self._left_s -= thread_time() - start
        if self._left_s < 0 or self._matcher.is_error():
            _log.warning(
                "a grammar is too complex: %s",
                self._matcher.get_error() or "its masks take too long",
            )
            raise InvalidRequest(
                "the grammar has too many continuations at a token",
                GRAMMAR,
                remedy="make it simpler",
            )


class Grammars:
    """Compiled grammars of one tokenizer; the least recently used are dropped."""

    def __init__(self, vocabulary: "Vocabulary", tokenizer: ModelTokenizer) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        self._raw, self._tokenizer = LLTokenizer(TokenizerWrapper(vocabulary)), tokenizer
        tokens = [token.decode("latin-1") for token in vocabulary.tokens]
        facts = {
            "tokens": tokens,
            "special": vocabulary.special_token_ids,
            "eos": vocabulary.eos_token_id,
        }
        self._compiler, self._turns = Compiler(facts), Turns(NUM_COMPILING)
        self._compiled: OrderedDict[bytes, tuple[LLMatcher, int]] = OrderedDict()
        """By digest of the grammar, with the bytes that it takes."""
        self._compiling: dict[bytes, Thread] = {}
        self._lock = Lock()

    @classmethod
    def of(cls, tokenizer: ModelTokenizer) -> "Grammars | None":
        """None where a grammar cannot hold the model, for a reason that is logged."""
        try:
            vocabulary = _vocabulary(tokenizer)
        except (ImportError, ValueError) as error:
            _log.info("%s takes no grammars: %s", tokenizer.info.model, error)
            return None
        if missing := _SPELLING - set(vocabulary.tokens):
            _log.info(
                "%s takes no grammars: its vocabulary lacks %s",
                tokenizer.info.model,
                sorted(missing)[:5],
            )
            return None
        return cls(vocabulary, tokenizer)

    def matcher(self, grammar: str, written: Sequence[int]) -> Matcher:
        """The state of `grammar`, which was checked before, after the tokens `written`. Blocks. Raises: InvalidRequest
        when `written` does not follow it."""
        matcher = self._first(grammar).deep_copy()
        tokens = [token for token in written if token not in self._tokenizer.eos_ids]
        if matcher.try_consume_tokens(tokens) < len(tokens):
            raise InvalidField("its segments do not follow the grammar", "context")
        return Matcher(matcher, self._tokenizer)

    def is_compiled(self, grammar: str, num_bytes: int) -> bool:
        """Whether a grammar that was checked before is compiled, or cannot be, as its request then finds; else that
        begins now. `num_bytes`: what it takes."""
        if (digest := _digest(grammar)) in self._compiled:
            return True
        if thread := self._compiling.get(digest):
            return not thread.is_alive() and self._compiling.pop(digest) is thread
        self._compiling[digest] = Thread(target=self._first, args=(grammar, num_bytes), daemon=True)
        self._compiling[digest].start()
        return False

    @property
    def num_compiled(self) -> int:
        """Number of compiled grammars kept."""
        return len(self._compiled)

    def close(self) -> None:
        self._compiler.close()

    def _first(self, grammar: str, num_bytes: int | None = None) -> "LLMatcher":
        """Return the first state of `grammar`; `num_bytes`: what it takes; None: not known."""
        from semspec.grammars.worker import LARGE_BYTES, compiled, on_large_stack

        digest, size = _digest(grammar), LARGE_BYTES if num_bytes is None else num_bytes
        first, size = self._compiled.get(digest, (None, size))
        if first is None:
            first, _ = on_large_stack(partial(compiled, self._raw, f"{_ONE_BY_ONE}\n{grammar}"))
        with self._lock:
            self._compiling.pop(digest, None)
            self._compiled[digest] = first, size
            self._compiled.move_to_end(digest)
            while len(self._compiled) > 1 and self._has_too_many:
                self._compiled.popitem(last=False)
        return first

    @property
    def _has_too_many(self) -> bool:
        return (
            len(self._compiled) > MAX_KEPT
            or sum(size for _, size in self._compiled.values()) > MAX_KEPT_BYTES
        )

    def turn(self, owner: str) -> AbstractAsyncContextManager[None]:
        """Wait for the owner's turn to compile in the process that writes."""
        return self._turns.taken(owner)

    async def compile(self, grammar: str, owner: str) -> None:
        """Compile a grammar that was checked before. When the caller is cancelled, its turn lasts until the thread has
        ended, which cannot be interrupted."""
        if _digest(grammar) in self._compiled:
            return
        num_bytes = await self.size(grammar, owner)
        async with self.turn(owner):
            compiling = asyncio.ensure_future(asyncio.to_thread(self._first, grammar, num_bytes))
            try:
                await asyncio.shield(compiling)
            finally:
                await asyncio.wait([compiling])

    async def check(self, grammar: str, owner: str) -> None:
        """Raises: InvalidRequest when the grammar is invalid or too costly; Overloaded."""
        if _digest(grammar) in self._compiled:
            return
        try:
            check_grammar(grammar)
        except ValueError as error:
            raise InvalidField(str(error), GRAMMAR) from None
        if flaw := (await self._found(grammar, owner)).flaw:
            raise InvalidField(flaw.reason, GRAMMAR)

    async def size(self, grammar: str, owner: str) -> int:
        """Return the bytes that a compiled grammar takes. Raises: Overloaded."""
        return (await self._found(grammar, owner)).num_bytes

    async def _found(self, grammar: str, owner: str) -> Compiled:
        return await self._compiler.compile([f"{_ONE_BY_ONE}\n{grammar}"], owner)


def _digest(grammar: str) -> bytes:
    return hashlib.blake2b(grammar.encode(), digest_size=16).digest()


def _vocabulary(tokenizer: ModelTokenizer) -> "Vocabulary":
    """Return llguidance's view of the tokenizer. Added tokens such as `</think>` have the text that they are in
    outputs, also if they are special; llguidance itself takes them for special tokens.

    Raises: ImportError, ValueError.
    """
    from llguidance.hf import from_tokenizer

    from semspec.grammars.worker import Vocabulary

    theirs = from_tokenizer(tokenizer.raw)
    tokens = [theirs.decode_bytes([token]) for token in range(theirs.vocab_size)]
    special = (set(tokenizer.raw.all_special_ids) | tokenizer.eos_ids) - tokenizer.mark_ids
    for token, added in tokenizer.raw.added_tokens_decoder.items():
        if added.special and token not in tokenizer.mark_ids:
            special.add(token)
        else:
            tokens[token] = added.content.encode()
    return Vocabulary(tokens, sorted(special), tokenizer.end_of_turn)


class Counts:
    """The tokens of a context, counted for penalties. Not thread-safe."""

    def __init__(
        self,
        penalties: Penalties,
        prompt: Sequence[int],
        written: Sequence[int],
        num_token_ids: int,
    ) -> None:
        self._penalties = penalties
        self._biased = torch.tensor([token for token, _ in penalties.logit_bias], dtype=torch.int64)
        self._biases = torch.tensor([bias for _, bias in penalties.logit_bias])
        self._written = torch.bincount(
            torch.tensor(written, dtype=torch.int64), minlength=num_token_ids
        )
        self._seen = self._written > 0
        if penalties.repetition != 1:
            self._seen[torch.tensor(prompt, dtype=torch.int64)] = True

    def add(self, token: int) -> None:
        """Count a written token."""
        self._written[token] += 1
        self._seen[token] = True

    def applied(self, logits: Tensor) -> Tensor:
        """A changed copy of `logits` `[vocab_size]`, fp32. See `Penalties`."""
        penalties, changed = self._penalties, logits.float().clone()
        written, seen = self._written.to(logits.device), self._seen.to(logits.device)
        if len(self._biased):
            changed[self._biased.to(logits.device)] += self._biases.to(logits.device)
        if penalties.repetition != 1:
            factors = torch.where(changed > 0, 1 / penalties.repetition, penalties.repetition)
            changed = torch.where(seen, changed * factors, changed)
        return changed - penalties.frequency * written - penalties.presence * (written > 0)


class Shaping:
    """The changes to a generation's logits, draw by draw. Not thread-safe."""

    def __init__(
        self,
        matcher: Matcher | None,
        counts: Counts | None,
        eos_ids: Iterable[int],
        min_tokens: int,
    ) -> None:
        """`eos_ids` are not drawn before `min_tokens` others."""
        self._matcher, self._counts = matcher, counts
        self._eos_ids, self._num_left = sorted(eos_ids), min_tokens

    def first(self) -> Shape:
        """For the first draw."""
        return self._shape(self._matcher.allowed() if self._matcher else None)

    def after(self, token: int) -> Shape:
        """For the draw after `token`, which is written now. It is to be used before the next call."""
        if self._counts:
            self._counts.add(token)
        self._num_left -= 1
        return self._shape(self._matcher.allowed_after(token) if self._matcher else None)

    def _shape(self, allowed: Tensor | None) -> Shape:
        return partial(self._shaped, allowed=allowed, may_end=self._num_left <= 0)

    def _shaped(self, logits: Tensor, allowed: Tensor | None, may_end: bool) -> Tensor:
        changed = self._counts.applied(logits) if self._counts else logits
        if not may_end:
            changed = changed.clone()
            changed[self._eos_ids] = -torch.inf
        return (
            changed
            if allowed is None
            else changed.masked_fill(~allowed.to(logits.device), -torch.inf)
        )


def shaping_of(
    request: Generate, tokens: Sequence[int], tokenizer: ModelTokenizer, grammars: Grammars | None
) -> Shaping | None:
    """What a request changes after `tokens`, its grammar checked before; None for nothing. Raises: InvalidRequest."""
    params, counts, matcher = request.params, None, None
    if not params.penalties.is_neutral:
        counts = Counts(params.penalties, tokens, request.written, tokenizer.num_embeddings)
    if params.grammar and grammars:
        matcher = grammars.matcher(params.grammar, request.written)
    return (
        Shaping(matcher, counts, tokenizer.eos_ids, params.min_tokens)
        if request.is_shaped
        else None
    )
