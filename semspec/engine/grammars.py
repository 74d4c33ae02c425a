"""Grammars of one tokenizer, compiled by llguidance, and the tokens that they allow."""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from threading import Lock, Thread
from time import thread_time
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from semspec.engine.tokenization import ModelTokenizer
from semspec.errors import InternalError, InvalidField, InvalidRequest
from semspec.grammars.compiler import Compiled, Compiler
from semspec.grammars.fair_slots import FairSlots
from semspec.grammars.limits import check_grammar
from semspec.types import GRAMMAR

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from semspec.grammars.worker import Vocabulary

MAX_KEPT, MAX_KEPT_BYTES = 16, 64 << 20
"""Maximum number of compiled grammars in the cache, and of the bytes that they take."""
NUM_COMPILING = 2
"""Grammars that this process compiles at once; those of one owner are compiled one after another."""

_WITHOUT_FORCING = '%llguidance {"no_forcing": true}'
"""Without this option, llguidance computes all text that a grammar forces at once, even if that text never ends."""

_PRINTABLE_BYTES = {bytes([byte]) for byte in (*b"\n", *range(0x20, 0x7F))}
"""A vocabulary with these tokens can write any JSON, in which all other characters can be escaped."""

INITIAL_MASK_S, TOKEN_MASK_S = 0.5, 0.005
"""CPU time that a call may spend on masks: at its start, and for each further token. Other calls wait meanwhile."""

_log = logging.getLogger(__name__)


class Matcher:
    """The state of a grammar after some tokens. Not thread-safe."""

    def __init__(self, matcher: "LLMatcher", tokenizer: ModelTokenizer) -> None:
        self._matcher, self._tokenizer = matcher, tokenizer
        self._eos_ids = sorted(tokenizer.eos_ids)
        self._left_s = INITIAL_MASK_S

    def allowed(self) -> Tensor:
        """Return whether each token may follow, bool `[num_embeddings]`; end-of-sequence may if the text is complete.

        Raises: InvalidRequest when the grammar is too complex; InternalError when it allows no token.
        """
        with self._limited():
            mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._left_s += TOKEN_MASK_S
        bits = torch.from_numpy(np.unpackbits(mask, bitorder="little").view(np.bool_))
        allowed = torch.zeros(self._tokenizer.num_embeddings, dtype=torch.bool)
        size = min(len(bits), len(allowed))
        allowed[:size] = bits[:size]
        allowed[self._eos_ids] = bool(bits[self._tokenizer.end_of_turn])
        if not allowed.any():
            raise InternalError("the grammar allows no token")
        return allowed

    def allowed_after(self, token: int) -> Tensor:
        """Add `token` to the text, and return `allowed`."""
        if token not in self._tokenizer.eos_ids:
            with self._limited():
                self._matcher.consume_token(token)
        return self.allowed()

    @contextmanager
    def _limited(self) -> Iterator[None]:
        """Count the time of the block. Raises: InvalidRequest when the grammar exceeds its limits of time or size."""
        start = thread_time()
        yield
        self._left_s -= thread_time() - start
        if self._left_s < 0 or self._matcher.is_error():
            _log.warning(
                "grammar refused while generating: %s",
                self._matcher.get_error() or "its token masks take too long",
            )
            raise InvalidRequest(
                "the grammar has too many continuations at a token",
                GRAMMAR,
                remedy="make it simpler",
            )


class Grammars:
    """A cache of the grammars compiled for one tokenizer; the least recently used are dropped."""

    def __init__(self, vocabulary: "Vocabulary", tokenizer: ModelTokenizer) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        self._raw, self._tokenizer = LLTokenizer(TokenizerWrapper(vocabulary)), tokenizer
        self._compiler = Compiler(
            {
                "tokens": [token.decode("latin-1") for token in vocabulary.tokens],
                "special": vocabulary.special_token_ids,
                "eos": vocabulary.eos_token_id,
            }
        )
        self._slots = FairSlots(NUM_COMPILING)
        self._compiled: OrderedDict[bytes, tuple[LLMatcher, int]] = OrderedDict()
        """The grammar's initial state and size in bytes, by the digest of its text."""
        self._compiling: dict[bytes, Thread] = {}
        self._lock = Lock()

    @classmethod
    def of(cls, tokenizer: ModelTokenizer) -> "Grammars | None":
        """Return the grammars of a tokenizer; None, with the reason in the log, if it does not support any."""
        try:
            vocabulary = _vocabulary(tokenizer)
        except (ImportError, ValueError) as error:
            _log.info("%s does not support grammars: %s", tokenizer.info.model, error)
            return None
        if missing := _PRINTABLE_BYTES - set(vocabulary.tokens):
            _log.info(
                "%s does not support grammars: its vocabulary lacks %s",
                tokenizer.info.model,
                sorted(missing)[:5],
            )
            return None
        return cls(vocabulary, tokenizer)

    def matcher(self, grammar: str, written: Sequence[int]) -> Matcher:
        """Return the state of `grammar`, which the caller has checked, after the tokens `written`. Blocks.

        Raises: InvalidRequest when `written` does not match the grammar.
        """
        matcher = self._initial_state(grammar).deep_copy()
        tokens = [token for token in written if token not in self._tokenizer.eos_ids]
        if matcher.try_consume_tokens(tokens) < len(tokens):
            raise InvalidField("its segments do not follow the grammar", "context")
        return Matcher(matcher, self._tokenizer)

    def is_compiled(self, grammar: str, num_bytes: int) -> bool:
        """Whether a grammar, which the caller has checked, is compiled; if not, start to compile it in a thread.

        Also true once if compiling has failed; the request then raises the error. `num_bytes`: its size as compiled.
        """
        if (digest := _digest(grammar)) in self._compiled:
            return True
        if thread := self._compiling.get(digest):
            return not thread.is_alive() and self._compiling.pop(digest) is thread
        self._compiling[digest] = Thread(
            target=self._initial_state, args=(grammar, num_bytes), daemon=True
        )
        self._compiling[digest].start()
        return False

    def close(self) -> None:
        self._compiler.close()

    def _initial_state(self, grammar: str, num_bytes: int | None = None) -> "LLMatcher":
        """Return the initial state of `grammar`; `num_bytes`: its size as compiled; None: not known."""
        from semspec.grammars.worker import LARGE_BYTES, compiled, on_large_stack

        digest, size = _digest(grammar), LARGE_BYTES if num_bytes is None else num_bytes
        state, size = self._compiled.get(digest, (None, size))
        if state is None:
            state, _ = on_large_stack(
                partial(compiled, self._raw, f"{_WITHOUT_FORCING}\n{grammar}")
            )
        with self._lock:
            self._compiling.pop(digest, None)
            self._compiled[digest] = state, size
            self._compiled.move_to_end(digest)
            while len(self._compiled) > 1 and self._is_over_limit:
                self._compiled.popitem(last=False)
        return state

    @property
    def _is_over_limit(self) -> bool:
        return (
            len(self._compiled) > MAX_KEPT
            or sum(size for _, size in self._compiled.values()) > MAX_KEPT_BYTES
        )

    def slot(self, owner: str) -> AbstractAsyncContextManager[None]:
        """Hold one of the `NUM_COMPILING` slots in the block, after waiting for it."""
        return self._slots.hold(owner)

    async def compile(self, grammar: str, owner: str) -> None:
        """Compile a grammar that the caller has checked.

        The compiling thread cannot be interrupted: a cancelled caller keeps its slot until the thread has ended.
        """
        if _digest(grammar) in self._compiled:
            return
        num_bytes = await self.size(grammar, owner)
        async with self.slot(owner):
            compiling = asyncio.ensure_future(
                asyncio.to_thread(self._initial_state, grammar, num_bytes)
            )
            try:
                await asyncio.shield(compiling)
            finally:
                await asyncio.wait([compiling])

    async def check(self, grammar: str, owner: str) -> None:
        """Check a grammar. Raises: InvalidRequest when it is invalid or too costly; Overloaded."""
        if _digest(grammar) in self._compiled:
            return
        try:
            check_grammar(grammar)
        except ValueError as error:
            raise InvalidField(str(error), GRAMMAR) from None
        if flaw := (await self._compile_in_process(grammar, owner)).flaw:
            raise InvalidField(flaw.reason, GRAMMAR)

    async def size(self, grammar: str, owner: str) -> int:
        """Return the size of a grammar as compiled, in bytes. Raises: Overloaded."""
        return (await self._compile_in_process(grammar, owner)).num_bytes

    async def _compile_in_process(self, grammar: str, owner: str) -> Compiled:
        """Return the result of compiling a grammar in a process that may be killed."""
        return await self._compiler.compile([f"{_WITHOUT_FORCING}\n{grammar}"], owner)


def _digest(grammar: str) -> bytes:
    return hashlib.blake2b(grammar.encode(), digest_size=16).digest()


def _vocabulary(tokenizer: ModelTokenizer) -> "Vocabulary":
    """Return the tokenizer's vocabulary for llguidance.

    Added tokens such as `</think>` keep the text that they have in outputs, even if they are special; llguidance's own
    conversion would take them for special tokens.

    Raises: ImportError, ValueError.
    """
    from llguidance.hf import from_tokenizer

    from semspec.grammars.worker import Vocabulary

    converted = from_tokenizer(tokenizer.raw)
    tokens = [converted.decode_bytes([token]) for token in range(converted.vocab_size)]
    special = (set(tokenizer.raw.all_special_ids) | tokenizer.eos_ids) - tokenizer.mark_ids
    for token, added in tokenizer.raw.added_tokens_decoder.items():
        if added.special and token not in tokenizer.mark_ids:
            special.add(token)
        else:
            tokens[token] = added.content.encode()
    return Vocabulary(tokens, sorted(special), tokenizer.end_of_turn)
