"""The table of faults and of the guarantees under each; `docs/reliability.md` summarises it."""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from semspec.stack.config import ROLES
from tests.chaos import injections as made
from tests.chaos.asking import Asking, repeated, streamed
from tests.chaos.injections import Holding
from tests.chaos.lossy import behind_lossy_link, has_namespaces
from tests.chaos.site import ALONE, CLIENTS, FAR, FIRST, SECOND
from tests.helpers.processes import GENEROUS_S
from tests.helpers.proxy import Link


class Promise(enum.StrEnum):
    """The result of requests sent before the fault."""

    SAME = "the same answer"
    ALONE = "an answer; if the target went on alone, it says so"
    DEGRADED = "the same answer; if it is not stored in full, it says so"


SAME, TARGET_ALONE, DEGRADED = Promise


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault with its guarantees."""

    name: str
    how: str
    promise: Promise
    holding: Holding
    gateway: str = ALONE
    """Which one the clients are led to."""
    hold_s: float | None = None
    """How long it lasts; None: until all who asked before have their answers."""
    is_spared: bool = False
    """Others serve meanwhile: recovery begins with the fault, not with its end."""
    asking: Asking = streamed
    read_s: float = GENEROUS_S
    """The clients' timeout for the next event."""
    is_load: bool = False
    """The clients ask again and again while it lasts."""
    prepared: Holding = made.nothing
    """A precondition."""
    why_not: Callable[[], str | None] = lambda: None
    """Why this machine cannot inject it."""
    is_short: bool = False
    """Part of the short form."""


SILENT, SLOW, NARROW = Link(is_silent=True), Link(delay_s=0.05), Link(bytes_per_s=200_000)
RESET = "every connection reset at once"
UNTIL_ANSWERED = "until the answers are there"
FROZEN_S, SILENT_S = 4.0, 4.0
IMPATIENT_S = 3.0
"""What a client waits for the next word that has no other way to learn that nobody is there."""


def spared(name: str, how: str, holding: Holding, **own: Any) -> Fault:
    """One of two replicas or gateways: the other serves meanwhile."""
    return Fault(name, how, SAME, holding, FIRST, is_spared=True, **own)


ONE_OF_EACH = (
    Fault(
        "draft killed",
        f"SIGKILL; none {UNTIL_ANSWERED}",
        TARGET_ALONE,
        made.killed("draft"),
        is_short=True,
    ),
    Fault("draft frozen", f"SIGSTOP {UNTIL_ANSWERED}", TARGET_ALONE, made.frozen("draft")),
    Fault(
        "verifier killed", f"SIGKILL; none {UNTIL_ANSWERED}", TARGET_ALONE, made.killed("verifier")
    ),
    Fault(
        "verifier frozen",
        f"SIGSTOP {UNTIL_ANSWERED}",
        TARGET_ALONE,
        made.frozen("verifier"),
        is_short=True,
    ),
    Fault(
        "target killed",
        "SIGKILL; started again at once",
        SAME,
        made.killed("target"),
        hold_s=0,
        is_short=True,
    ),
    Fault("target frozen", "SIGSTOP for 4 s", SAME, made.frozen("target"), hold_s=FROZEN_S),
    Fault(
        "Redis killed",
        f"SIGKILL; none {UNTIL_ANSWERED}",
        DEGRADED,
        made.killed("redis"),
        is_short=True,
    ),
    Fault("Redis frozen", f"SIGSTOP {UNTIL_ANSWERED}", DEGRADED, made.frozen("redis")),
)

TWO_OF_EACH = tuple(
    spared(f"one of two {role}s {done}", how, holding(role), is_short=role == "target")
    for role in ROLES
    for done, how, holding in (
        ("killed", f"SIGKILL; one {UNTIL_ANSWERED}", made.killed),
        ("frozen", f"SIGSTOP {UNTIL_ANSWERED}", made.frozen),
    )
)

GATEWAYS = (
    spared("gateway killed", "SIGKILL; clients that attach again are led to another",
        made.turned_away(made.killed(FIRST)), is_short=True),
    spared("gateway killed, no stream", "SIGKILL; clients ask another again, under the same Idempotency-Key",
        made.turned_away(made.killed(FIRST)), asking=repeated, is_short=True),
    spared("gateway frozen",
        "SIGSTOP; clients that hear nothing for 3 s attach again, and are led to another",
        made.turned_away(made.frozen(FIRST)), read_s=IMPATIENT_S),
    Fault("the only gateway killed", "SIGKILL; started again at once", SAME, made.killed(FIRST), FIRST, hold_s=0),
)  # fmt: skip

NETWORK = (
    *(
        Fault(f"{name} far away", "each byte to and from it 50 ms late", SAME, made.linked(name.lower(), SLOW))
        for name in ("draft", "target", "verifier", "Redis")
    ),
    Fault("target on a narrow line", "200 kB a second each way", SAME, made.linked("target", NARROW)),
    Fault("draft cut off", f"its packets vanish {UNTIL_ANSWERED}", TARGET_ALONE, made.linked("draft", SILENT)),
    Fault("verifier cut off", f"its packets vanish {UNTIL_ANSWERED}", TARGET_ALONE, made.linked("verifier", SILENT)),
    Fault("target cut off", "its packets vanish for 4 s", SAME, made.linked("target", SILENT), hold_s=SILENT_S),
    Fault("Redis cut off", f"its packets vanish {UNTIL_ANSWERED}", DEGRADED, made.linked("redis", SILENT)),
    *(
        spared(f"one of two {role}s cut off", f"its packets vanish {UNTIL_ANSWERED}",
            made.linked(role, SILENT), is_short=role == "draft")
        for role in ROLES
    ),
    Fault("draft's connections broken", RESET, TARGET_ALONE, made.reset("draft"), hold_s=0),
    Fault("verifier's connections broken", RESET, TARGET_ALONE, made.reset("verifier"), hold_s=0),
    Fault("target's connections broken", RESET, SAME, made.reset("target"), hold_s=0, is_short=True),
    Fault("Redis' connections broken", RESET, SAME, made.reset("redis"), hold_s=0),
    Fault("clients' connections broken", RESET, SAME, made.reset(CLIENTS), hold_s=0, is_short=True),
    Fault("clients cut off", "their packets vanish for 4 s; who hears nothing for 3 s attaches again", SAME,
        made.linked(CLIENTS, SILENT), hold_s=SILENT_S, read_s=IMPATIENT_S),
    Fault("packets lost",
        "5% of those to and from the target, the others 5 to 15 ms late (network namespaces; asks for root)",
        SAME, made.nothing, FAR, prepared=behind_lossy_link, why_not=has_namespaces),
)  # fmt: skip

RESOURCES = (
    Fault("disk full",
        f"that of Redis, which writes all down, {UNTIL_ANSWERED} (a small tmpfs; asks for root)", DEGRADED,
        made.disk_full, prepared=made.small_disk, why_not=made.can_mount),
    Fault("memory full", f"Redis at its `maxmemory` {UNTIL_ANSWERED}", DEGRADED,
        made.commanded("CONFIG SET maxmemory 1", undo=("CONFIG", "SET", "maxmemory", "0")), is_short=True),
    Fault("clock jumps", "Redis' and the gateway's go forward by two hours, and back (asks for a C compiler)",
        SAME, made.two_hours_ahead, hold_s=0.2, prepared=made.shiftable_clocks, why_not=made.has_compiler),
)  # fmt: skip

REDIS = (
    Fault("Redis' scripts forgotten", "`SCRIPT FLUSH`", SAME, made.commanded("SCRIPT FLUSH"), hold_s=0),
    Fault("Redis emptied", "`FLUSHALL`", DEGRADED, made.commanded("FLUSHALL"), hold_s=0),
    Fault("Redis asks for a password", f"another one than the gateways have {UNTIL_ANSWERED}", DEGRADED,
        made.commanded("CONFIG SET requirepass another", "CLIENT KILL TYPE normal SKIPME yes",
                       undo=("CONFIG", "SET", "requirepass", ""))),
    Fault("Redis read-only", f"a replica of a server that is gone {UNTIL_ANSWERED}", DEGRADED,
        made.commanded("REPLICAOF 127.0.0.1 1", undo=("REPLICAOF", "NO", "ONE"))),
    Fault("Redis loses the end of its log",
        "SIGKILL; the last 3,001 bytes of its append-only log are gone; started again at once", DEGRADED,
        made.log_cut, hold_s=0, prepared=made.append_only_log),
)  # fmt: skip

RESTARTS = tuple(
    Fault(f"{names} restarted in turn",
        "two of them: SIGTERM, another in its place, the other when that is known; clients ask all the while",
        SAME, made.restarted(*pair), FIRST, hold_s=0, is_load=True, is_short=names == "gateways")
    for names, pair in (
        ("drafts", ("draft", "draft 2")),
        ("targets", ("target", "target 2")),
        ("verifiers", ("verifier", "verifier 2")),
        ("gateways", (FIRST, SECOND)),
    )
)  # fmt: skip

TABLE = (*ONE_OF_EACH, *TWO_OF_EACH, *GATEWAYS, *NETWORK, *RESOURCES, *REDIS, *RESTARTS)
