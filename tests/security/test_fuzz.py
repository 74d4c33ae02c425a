"""The gRPC services fed with changed bytes of sound requests: each is answered or refused, and nothing grows.

A minute in `make test-slow`; `make fuzz` takes ten. Cases are drawn by hypothesis, with a new seed each round.
"""

import asyncio
import gc
import os
import sys
import time
from typing import Any

import grpc
import psutil
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.security.support import METHODS, path_of, sound_messages, status

pytestmark = pytest.mark.slow
FUZZ_S = float(os.environ.get("SEMSPEC_FUZZ_S", "60"))
CASES_A_ROUND = 100
GROWTH_BYTES = 96 << 20
"""Growth of memory after the first third that counts as a leak; a cache of keys and values fills meanwhile."""
REFUSED = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE}
"""What no request may cause."""

Edit = tuple[float, int, bytes]
"""Where, as a share of the length; the number of bytes that go; the bytes that come."""
EDITS = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12), st.binary(max_size=12)), min_size=1, max_size=5)


def edited(data: bytes, edits: list[Edit]) -> bytes:
    for share, num_gone, new in edits:
        place = int(share * len(data))
        data = data[:place] + new + data[place + num_gone :]
    return data


async def test_changed_bytes_are_answered_or_refused_and_nothing_grows(
    addresses: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    loop, sound = asyncio.get_running_loop(), await sound_messages(addresses["Target"])
    num_cases = 0

    def ask(method: Any, data: bytes) -> None:
        nonlocal num_cases
        num_cases += 1
        call = status(addresses[method.containing_service.name], method, data, timeout_s=20)
        answer = asyncio.run_coroutine_threadsafe(call, loop).result()
        assert answer not in REFUSED, f"{path_of(method)} {data!r}: {answer}\n{caplog.text}"
        assert not [record for record in caplog.records if record.exc_info], caplog.text

    def round_of(number: int) -> None:
        @seed(number)
        @settings(
            max_examples=CASES_A_ROUND,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(st.sampled_from(METHODS), EDITS)
        def check(method: Any, edits: list[Edit]) -> None:
            ask(method, edited(sound[method.input_type.full_name].SerializeToString(), edits))

        check()

    start, process, before = time.monotonic(), psutil.Process(), 0
    first = int(os.environ.get("SEMSPEC_FUZZ_SEED", "0"))
    number = first
    while (passed_s := time.monotonic() - start) < FUZZ_S:
        if not before and passed_s > FUZZ_S / 3:
            gc.collect()
            before = process.memory_info().rss
        await asyncio.to_thread(round_of, number)
        number += 1
    gc.collect()
    grown = process.memory_info().rss - before
    told = f"{num_cases} cases, seeds {first} to {number - 1}, {FUZZ_S:g} s, grown by {grown / 1e6:.1f} MB\n"
    sys.stdout.write(told)
    assert num_cases >= CASES_A_ROUND and (not before or grown < GROWTH_BYTES), grown
