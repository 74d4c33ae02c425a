"""The gRPC services fed with changed bytes of sound requests: each is answered or refused, and nothing grows.

A minute in `make test-slow`; `make fuzz` takes ten. Each case is drawn from a seed of its own.
"""

import gc
import os
import sys
import time
from random import Random

import grpc
import psutil
import pytest

from semspec.rpc.calls import path_of
from tests.attacks.case import edited
from tests.security.support import METHODS, sound_messages, status

pytestmark = pytest.mark.slow
FUZZ_S = float(os.environ.get("SEMSPEC_FUZZ_S", "60"))
GROWTH_BYTES = 96 << 20
"""Growth of memory after the first third that counts as a leak; a cache of keys and values fills meanwhile."""
REFUSED = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE}
"""What no request may cause."""


async def test_changed_bytes_are_answered_or_refused_and_nothing_grows(
    addresses: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    sound = await sound_messages(addresses["Target"])
    start, process, before = time.monotonic(), psutil.Process(), 0
    first = number = int(os.environ.get("SEMSPEC_FUZZ_SEED", "0"))
    while (passed_s := time.monotonic() - start) < FUZZ_S:
        if not before and passed_s > FUZZ_S / 3:
            gc.collect()
            before = process.memory_info().rss
        random = Random(number)
        method = random.choice(METHODS)
        data = edited(sound[method.name].SerializeToString(), random)
        answer = await status(addresses[method.containing_service.name], method, data, timeout_s=20)
        assert answer not in REFUSED, f"seed {number}, {path_of(method)} {data!r}: {answer}\n{caplog.text}"
        assert not [record for record in caplog.records if record.exc_info], caplog.text
        number += 1
    gc.collect()
    num_cases, grown = number - first, process.memory_info().rss - before
    sys.stdout.write(f"{num_cases} cases, {FUZZ_S:g} s, grown by {grown / 1e6:.1f} MB; the next seed is {number}\n")
    assert num_cases >= 100 and (not before or grown < GROWTH_BYTES), grown
