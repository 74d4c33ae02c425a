"""Compiles grammars, one after another, for the process that starts this script and may kill it.

A grammar of a few bytes can keep the compiler busy for hours, take all memory, or overflow the stack. This script reads
lines of JSON: first the vocabulary, or null for single bytes, then lists of grammars. Its answer to each list is the
first invalid grammar with the reason, or null, and the bytes that the compiled grammars take.
"""

import ctypes
import json
import os
import re
import resource
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

CPU_S = 2
"""Seconds of CPU time for a list of grammars."""
MEMORY_BYTES = 128 << 20
"""Bytes that compiling may add to the process's memory; a compiled grammar takes less."""
LARGE_BYTES = 32 << 20
"""Assumed size of compiled grammars if the C library does not report it; the largest one seen took 35 MB."""
STACK_BYTES = 256 << 20
"""Enough for `limits.MAX_NODES` nested values. Only the used part of a stack takes memory."""

MAX_REASON = 300
"""Characters of the reason why a grammar is refused."""

LIMITS = LLParserLimits(max_lexer_states=25_000, verbose_errors=False)
"""A lexer state takes 1 to 2 kB, also in the process of the model."""

_LOCATION = re.compile(r"^(at )?\d+\(\d+\): (failed to compile JSON schema: )?")
"""Location of an error in the grammar's text."""
_QUOTE = re.compile(r"\n +1 \| ")
"""Start of the grammar's text, which follows an error in it."""

T = TypeVar("T")
_starting = threading.Lock()


class Vocabulary:
    """A vocabulary for `llguidance.TokenizerWrapper`. It tokenizes nothing: forced text is drawn like any other."""

    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes], special: Sequence[int], end_of_turn: int) -> None:
        self.tokens, self.special_token_ids, self.eos_token_id = tokens, special, end_of_turn

    def __call__(self, text: bytes) -> list[int]:
        return []


def compiled(tokenizer: LLTokenizer, grammar: str) -> tuple[LLMatcher, str]:
    """Compile a grammar; return its initial state and the error, if any.

    The state also has an error if the grammar is valid but allows no text. Blocks, without the interpreter's lock. Call
    it by `on_large_stack`.
    """
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS)
    error = matcher.get_error()
    matcher.compute_bitmask()  # fails if there is no first token
    return matcher, error


def on_large_stack(work: Callable[[], T]) -> T:
    """Run `work`, which must not raise, in a thread with a stack of `STACK_BYTES`, and return its result."""
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(work()), name="compiler")
    with _starting:  # the stack size applies to every thread that starts
        previous = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(previous)
    thread.join()
    return results[0]


def main() -> None:
    """Answer until the input ends."""
    os.nice(5)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    vocabulary: dict[str, Any] | None = json.loads(sys.stdin.buffer.readline())
    if vocabulary:
        tokens = [token.encode("latin-1") for token in vocabulary["tokens"]]
        tokenizer = LLTokenizer(
            TokenizerWrapper(Vocabulary(tokens, vocabulary["special"], vocabulary["eos"]))
        )
    else:
        tokenizer = LLTokenizer("byte")
    _limit_memory()
    for line in sys.stdin.buffer:
        _allow_cpu_time()
        sys.stdout.write(f"{json.dumps(_result(tokenizer, json.loads(line)))}\n")
        sys.stdout.flush()


def _limit_memory() -> None:
    if sys.platform == "linux":
        with open("/proc/self/statm") as statm:
            data = int(statm.read().split()[5]) * resource.getpagesize()
        limit = data + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _allow_cpu_time() -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    resource.setrlimit(
        resource.RLIMIT_CPU,
        (int(used.ru_utime + used.ru_stime) + 1 + CPU_S, resource.RLIM_INFINITY),
    )


def _result(
    tokenizer: LLTokenizer, grammars: Sequence[str]
) -> tuple[tuple[int, str, bool] | None, int]:
    """Compile grammars; return the first flaw, None if there is none, and the bytes that all grammars take together.

    A flaw is the index of the grammar, the reason, and whether the grammar is valid but allows no text.
    """
    matchers, before = list[LLMatcher](), _allocated_bytes()
    for index, grammar in enumerate(grammars):
        matcher, error = compiled(tokenizer, grammar)
        matchers.append(matcher)
        if error or matcher.is_error():
            return (index, short_reason(error or matcher.get_error()), not error), 0
    after = _allocated_bytes()
    return None, LARGE_BYTES if before is None or after is None else max(0, after - before)


class _Allocated(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    )


def _allocated_bytes() -> int | None:
    """Return the bytes that this process has allocated; None if the C library does not report it."""
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return None
    mallinfo2.restype = _Allocated
    allocated = mallinfo2()
    return int(allocated.hblkhd + allocated.uordblks)


def short_reason(error: str) -> str:
    """Return the compiler's error in one line, without the grammar's text, which the compiler quotes."""
    quoted = _QUOTE.search(error)
    message = error[: quoted.start()] if quoted else error.partition("\n<")[0]
    message = _LOCATION.sub("", message.rpartition("\nerror: ")[2])
    return " ".join(message[: 2 * MAX_REASON].split())[:MAX_REASON]


if __name__ == "__main__":
    # One thread for all grammars, because the stack of a finished thread is freed only later.
    on_large_stack(main)
