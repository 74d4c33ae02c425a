"""Grammars that hold what a model writes, by llguidance: which tokens may follow."""

import logging
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from semspec.engine.tokenization import ModelTokenizer
from semspec.errors import InternalError, InvalidRequest

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_KEPT = 64
"""Number of compiled grammars kept."""

_ONE_BY_ONE = '%llguidance {"no_forcing": true}'
"""Else the text that a grammar forces would be computed at once, though it has no end, as a list of lists of lists."""

_SPELLING = {bytes([byte]) for byte in (*b"\n", *range(0x20, 0x7F))}
"""A vocabulary with these tokens spells any JSON: other characters can be escaped."""

_log = logging.getLogger(__name__)


def no_grammars() -> InvalidRequest:
    """The refusal of a model without `ModelInfo.takes_grammars`."""
    return InvalidRequest("grammar: this model takes none; leave it out", "grammar")


class Matcher:
    """The state of a grammar after some tokens. Not thread-safe."""

    def __init__(self, matcher: "LLMatcher", tokenizer: ModelTokenizer) -> None:
        self._matcher, self._tokenizer = matcher, tokenizer
        self._eos_ids = sorted(tokenizer.eos_ids)

    def allowed(self) -> Tensor:
        """Whether each token may follow, bool `[num_embeddings]`: those of end-of-sequence iff the text is complete.

        Raises: InternalError when the grammar's limits are exceeded.
        """
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        bits = torch.from_numpy(np.unpackbits(mask, bitorder="little").view(np.bool_))
        allowed = torch.zeros(self._tokenizer.num_embeddings, dtype=torch.bool)
        size = min(len(bits), len(allowed))
        allowed[:size] = bits[:size]
        allowed[self._eos_ids] = bool(bits[self._tokenizer.end_of_turn])
        if self._matcher.is_error() or not allowed.any():
            raise InternalError(f"the grammar allows no token: {self._matcher.get_error()}")
        return allowed

    def allowed_after(self, token: int) -> Tensor:
        """`allowed` once `token` is written."""
        if token not in self._tokenizer.eos_ids and not self._matcher.consume_token(token):
            raise InternalError(f"the grammar does not take a token: {self._matcher.get_error()}")
        return self.allowed()


class Grammars:
    """Compiled grammars of one tokenizer; the least recently used are dropped."""

    def __init__(self, raw: "LLTokenizer", tokenizer: ModelTokenizer) -> None:
        self._raw, self._tokenizer = raw, tokenizer
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._lock = Lock()

    @classmethod
    def of(cls, tokenizer: ModelTokenizer) -> "Grammars | None":
        """None where a grammar cannot hold the model, for a reason that is logged."""
        try:
            raw = _as_text(tokenizer)
        except (ImportError, ValueError) as error:
            _log.info("%s takes no grammars: %s", tokenizer.info.model, error)
            return None
        if missing := _SPELLING - {raw.decode_bytes([token]) for token in range(raw.vocab_size)}:
            _log.info("%s takes no grammars: its vocabulary lacks %s", tokenizer.info.model, sorted(missing)[:5])
            return None
        return cls(raw, tokenizer)

    def matcher(self, grammar: str, written: Sequence[int]) -> Matcher:
        """The state of `grammar` after the tokens `written`; may be called in any thread.

        Raises: InvalidRequest when the grammar is invalid, or `written` does not follow it.
        """
        matcher = self._fresh(grammar)
        tokens = [token for token in written if token not in self._tokenizer.eos_ids]
        if matcher.try_consume_tokens(tokens) < len(tokens):
            raise InvalidRequest("context: its segments do not follow the grammar", "context")
        return Matcher(matcher, self._tokenizer)

    def _fresh(self, grammar: str) -> "LLMatcher":
        from llguidance import LLMatcher

        with self._lock:
            compiled = self._compiled.pop(grammar, None)
            if compiled is None:
                compiled = LLMatcher(self._raw, f"{_ONE_BY_ONE}\n{grammar}", log_level=0)
                compiled.compute_bitmask()  # which finds out whether there is a first token
                if compiled.is_error():
                    raise InvalidRequest(f"grammar: {compiled.get_error().partition('<state>')[0].strip()}", "grammar")
            self._compiled[grammar] = compiled
            if len(self._compiled) > MAX_KEPT:
                self._compiled.popitem(last=False)
            return compiled.deep_copy()


class _Vocabulary:
    """A vocabulary as `llguidance.TokenizerWrapper` takes it."""

    bos_token_id = None

    def __init__(self, tokens: list[bytes], special_token_ids: list[int], tokenizer: ModelTokenizer) -> None:
        self.tokens, self.special_token_ids = tokens, special_token_ids
        self.eos_token_id, self._tokenizer = tokenizer.end_of_turn, tokenizer

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenizer.ids_of(text.decode(errors="replace"))


def _as_text(tokenizer: ModelTokenizer) -> "LLTokenizer":
    """llguidance's view of the tokenizer, with added tokens such as `</think>` as the text that they are in outputs;
    llguidance itself takes them for special tokens. Raises: ImportError, ValueError."""
    from llguidance import LLTokenizer, TokenizerWrapper
    from llguidance.hf import from_tokenizer

    theirs = from_tokenizer(tokenizer.raw)
    tokens = [theirs.decode_bytes([token]) for token in range(theirs.vocab_size)]
    special = set(tokenizer.raw.all_special_ids) | tokenizer.eos_ids
    for token, added in tokenizer.raw.added_tokens_decoder.items():
        if added.special:
            special.add(token)
        else:
            tokens[token] = added.content.encode()
    return LLTokenizer(TokenizerWrapper(_Vocabulary(tokens, sorted(special), tokenizer)))
