"""Compiles grammars, one after another, for the process that starts this script and may kill it.

A few bytes can keep the compiler computing for hours, take all memory, or overflow its stack. Reads lines of JSON:
first the vocabulary, null for single bytes, then lists of grammars. Answers each by the first
that is invalid and the reason, or null, and by the bytes that the compiled grammars take.
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
"""Assumed size of a compiled grammar where the C library does not tell; the largest found took 35 MB."""
STACK_BYTES = 256 << 20
"""Enough for `limits.MAX_NODES` nested values; only what is used takes memory."""

MAX_REASON = 300
"""Characters of the reason why a grammar is refused."""

LIMITS = LLParserLimits(max_lexer_states=25_000, verbose_errors=False)
"""A lexer state takes 1 to 2 kB, in the process that writes by the grammar."""

_PLACE = re.compile(r"^(at )?\d+\(\d+\): (failed to compile JSON schema: )?")
"""Place of an error in the grammar's text."""
_QUOTE = re.compile(r"\n +1 \| ")
"""Begins the grammar's text after an error in it."""

T = TypeVar("T")
_starting = threading.Lock()


class Vocabulary:
    """A vocabulary for `llguidance.TokenizerWrapper`. It tokenizes nothing: forced text is drawn as any other."""

    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes], special: Sequence[int], end_of_turn: int) -> None:
        self.tokens, self.special_token_ids, self.eos_token_id = tokens, special, end_of_turn

    def __call__(self, text: bytes) -> list[int]:
        return []


def compiled(tokenizer: LLTokenizer, grammar: str) -> tuple[LLMatcher, str]:
    """The grammar in its first state, and why it is no grammar; the matcher is in error if it allows no text either.

    Blocks, without the interpreter's lock. To be called `on_large_stack`.
    """
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS)
    error = matcher.get_error()
    matcher.compute_bitmask()  # which finds out whether there is a first token
    return matcher, error


def on_large_stack(work: Callable[[], T]) -> T:
    """The result of `work`, which must not raise, in a thread of its own."""
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(work()), name="compiler")
    with _starting:  # the size is that of all threads that start
        usual = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(usual)
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
    """Compile grammars and return the first flaw, and the bytes that all take together.

    The flaw is the index of the first invalid grammar, the reason, and whether it is valid but allows no text; None if
    all are valid.
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
    """Return the bytes that this process has allocated; None where the C library does not tell."""
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return None
    mallinfo2.restype = _Allocated
    allocated = mallinfo2()
    return int(allocated.hblkhd + allocated.uordblks)


def short_reason(error: str) -> str:
    """Return the compiler's error in one line, without the grammar's text, which it quotes whole."""
    quoted = _QUOTE.search(error)
    message = error[: quoted.start()] if quoted else error.partition("\n<")[0]
    message = _PLACE.sub("", message.rpartition("\nerror: ")[2])
    return " ".join(message[: 2 * MAX_REASON].split())[:MAX_REASON]


if __name__ == "__main__":
    on_large_stack(
        main
    )  # one thread for all: the stack of a thread that has ended is freed some time later
