"""The table of faults and of the guarantees under each; `docs/reliability.md` has the same table."""

import enum
from collections.abc import Callable
from dataclasses import dataclass

from semspec.stack.config import ROLES
from tests.chaos import injections as made
from tests.chaos.asking import Asking, hardly_read, repeated, streamed
from tests.chaos.injections import Holding
from tests.chaos.lossy import behind_lossy_link, has_namespaces
from tests.chaos.proxy import Link
from tests.chaos.site import ALONE, CLIENTS, FAR, FIRST, SECOND
from tests.processes import GENEROUS_S


class Promise(enum.StrEnum):
    """The result of requests sent before the fault."""

    SAME = "the same answer"
    ALONE = "an answer; if the target went on alone, it says so"
    DEGRADED = "the same answer; if it is not stored in full, it says so"


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
    num_requests: int = 2
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

ONE_OF_EACH = (
    Fault("draft killed", f"SIGKILL; none {UNTIL_ANSWERED}", Promise.ALONE, made.killed("draft"), is_short=True),
    Fault("draft frozen", f"SIGSTOP {UNTIL_ANSWERED}", Promise.ALONE, made.frozen("draft")),
    Fault("verifier killed", f"SIGKILL; none {UNTIL_ANSWERED}", Promise.ALONE, made.killed("verifier")),
    Fault("verifier frozen", f"SIGSTOP {UNTIL_ANSWERED}", Promise.ALONE, made.frozen("verifier"), is_short=True),
    Fault(
        "target killed", "SIGKILL; started again at once", Promise.SAME, made.killed("target"), hold_s=0, is_short=True
    ),
    Fault("target frozen", "SIGSTOP for 4 s", Promise.SAME, made.frozen("target"), hold_s=FROZEN_S),
    Fault("Redis killed", f"SIGKILL; none {UNTIL_ANSWERED}", Promise.DEGRADED, made.killed("redis"), is_short=True),
    Fault("Redis frozen", f"SIGSTOP {UNTIL_ANSWERED}", Promise.DEGRADED, made.frozen("redis")),
)

TWO_OF_EACH = tuple(
    Fault(
        f"one of two {role}s {done}", how, Promise.SAME, holding(role), FIRST, is_spared=True, is_short=role == "target"
    )
    for role in ROLES
    for done, how, holding in (
        ("killed", f"SIGKILL; one {UNTIL_ANSWERED}", made.killed),
        ("frozen", f"SIGSTOP {UNTIL_ANSWERED}", made.frozen),
    )
)

GATEWAYS = (
    Fault(
        "gateway killed",
        "SIGKILL; clients that attach again are led to another",
        Promise.SAME,
        made.turned_away(made.killed(FIRST)),
        FIRST,
        is_spared=True,
        is_short=True,
    ),
    Fault(
        "gateway killed, no stream",
        "SIGKILL; clients ask another again, under the same Idempotency-Key",
        Promise.SAME,
        made.turned_away(made.killed(FIRST)),
        FIRST,
        is_spared=True,
        asking=repeated,
        is_short=True,
    ),
    Fault(
        "gateway frozen",
        "SIGSTOP; clients that hear nothing for 3 s attach again, and are led to another",
        Promise.SAME,
        made.turned_away(made.frozen(FIRST)),
        FIRST,
        is_spared=True,
        read_s=IMPATIENT_S,
    ),
    Fault(
        "the only gateway killed", "SIGKILL; started again at once", Promise.SAME, made.killed(FIRST), FIRST, hold_s=0
    ),
)

NETWORK = (
    *(
        Fault(f"{name} far away", "each byte to and from it 50 ms late", Promise.SAME, made.linked(name.lower(), SLOW))
        for name in ("draft", "target", "verifier", "Redis")
    ),
    Fault("target on a narrow line", "200 kB a second each way", Promise.SAME, made.linked("target", NARROW)),
    Fault("draft cut off", f"its packets vanish {UNTIL_ANSWERED}", Promise.ALONE, made.linked("draft", SILENT)),
    Fault("verifier cut off", f"its packets vanish {UNTIL_ANSWERED}", Promise.ALONE, made.linked("verifier", SILENT)),
    Fault("target cut off", "its packets vanish for 4 s", Promise.SAME, made.linked("target", SILENT), hold_s=SILENT_S),
    Fault("Redis cut off", f"its packets vanish {UNTIL_ANSWERED}", Promise.DEGRADED, made.linked("redis", SILENT)),
    *(
        Fault(
            f"one of two {role}s cut off",
            f"its packets vanish {UNTIL_ANSWERED}",
            Promise.SAME,
            made.linked(role, SILENT),
            FIRST,
            is_spared=True,
            is_short=role == "draft",
        )
        for role in ROLES
    ),
    Fault("draft's connections broken", RESET, Promise.ALONE, made.reset("draft"), hold_s=0),
    Fault("verifier's connections broken", RESET, Promise.ALONE, made.reset("verifier"), hold_s=0),
    Fault("target's connections broken", RESET, Promise.SAME, made.reset("target"), hold_s=0, is_short=True),
    Fault("Redis' connections broken", RESET, Promise.SAME, made.reset("redis"), hold_s=0),
    Fault("clients' connections broken", RESET, Promise.SAME, made.reset(CLIENTS), hold_s=0, is_short=True),
    Fault(
        "clients cut off",
        "their packets vanish for 4 s; who hears nothing for 3 s attaches again",
        Promise.SAME,
        made.linked(CLIENTS, SILENT),
        hold_s=SILENT_S,
        read_s=IMPATIENT_S,
    ),
    Fault(
        "packets lost",
        "5% of those to and from the target, the others 5 to 15 ms late (network namespaces; asks for root)",
        Promise.SAME,
        made.nothing,
        FAR,
        prepared=behind_lossy_link,
        why_not=has_namespaces,
    ),
)

RESOURCES = (
    Fault(
        "disk full",
        f"that of Redis, which writes all down, {UNTIL_ANSWERED} (a small tmpfs; asks for root)",
        Promise.DEGRADED,
        made.disk_full,
        prepared=made.small_disk,
        why_not=made.can_mount,
    ),
    Fault(
        "memory full",
        f"Redis at its `maxmemory` {UNTIL_ANSWERED}",
        Promise.DEGRADED,
        made.commanded("CONFIG SET maxmemory 1", undo=("CONFIG", "SET", "maxmemory", "0")),
        is_short=True,
    ),
    Fault(
        "client hardly reads",
        "2 bytes a second, of more than fits on the way; later it attaches again",
        Promise.SAME,
        made.nothing,
        asking=hardly_read,
        num_requests=1,
    ),
    Fault(
        "clock jumps",
        "Redis' and the gateway's go forward by two hours, and back (asks for a C compiler)",
        Promise.SAME,
        made.two_hours_ahead,
        hold_s=0.2,
        prepared=made.shiftable_clocks,
        why_not=made.has_compiler,
    ),
)

REDIS = (
    Fault("Redis' scripts forgotten", "`SCRIPT FLUSH`", Promise.SAME, made.commanded("SCRIPT FLUSH"), hold_s=0),
    Fault("Redis emptied", "`FLUSHALL`", Promise.DEGRADED, made.commanded("FLUSHALL"), hold_s=0),
    Fault(
        "Redis asks for a password",
        f"another one than the gateways have {UNTIL_ANSWERED}",
        Promise.DEGRADED,
        made.commanded(
            "CONFIG SET requirepass another",
            "CLIENT KILL TYPE normal SKIPME yes",
            undo=("CONFIG", "SET", "requirepass", ""),
        ),
    ),
    Fault(
        "Redis read-only",
        f"a replica of a server that is gone {UNTIL_ANSWERED}",
        Promise.DEGRADED,
        made.commanded("REPLICAOF 127.0.0.1 1", undo=("REPLICAOF", "NO", "ONE")),
    ),
    Fault(
        "Redis loses the end of its log",
        "SIGKILL; the last 3,001 bytes of its append-only log are gone; started again at once",
        Promise.DEGRADED,
        made.log_cut,
        hold_s=0,
        prepared=made.append_only_log,
    ),
)

RESTARTS = tuple(
    Fault(
        f"{names} restarted in turn",
        "two of them: SIGTERM, another in its place, the other when that is known; clients ask all the while",
        Promise.SAME,
        made.restarted(*pair),
        FIRST,
        hold_s=0,
        is_load=True,
        is_short=names == "gateways",
    )
    for names, pair in (
        ("drafts", ("draft", "draft 2")),
        ("targets", ("target", "target 2")),
        ("verifiers", ("verifier", "verifier 2")),
        ("gateways", (FIRST, SECOND)),
    )
)

TABLE = (*ONE_OF_EACH, *TWO_OF_EACH, *GATEWAYS, *NETWORK, *RESOURCES, *REDIS, *RESTARTS)
