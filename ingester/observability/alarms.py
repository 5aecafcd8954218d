"""The alarms: what an operator has to act on, by rules over a few figures of the daemon.

    figures ─▶ rule ──▶ raised at once ──▶ held for HOLD_S after it was so last ──▶ gone

Law of this file: pure; time is handed in. A rule is one function from ``Facts`` to what is wrong,
and none looks at another. An alarm's name is that of its entry in ``deploy/RUNBOOK.md``. Messages
name no namespace and no table: whoever may ask for the status may read them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ingester.observability.standing import Alarm, DiskStatus, Severity, StoreState

HOLD_S = 10.0
"""An alarm falls when it has not been so for this long: what comes and goes is one alarm."""
FAILED_PERSISTS = 3
"""So many failed attempts within a minute are more than a store that stumbles."""
CERTIFICATE_WARN_S, CERTIFICATE_LAST_S = 14 * 86400.0, 86400.0
STALL_S = 5.0
"""The time for which the event loop, or a write of the log, may stand still without an alarm."""
SLOT_BYTES = 20 << 30
"""The log that a source may keep for a replication without an alarm, as in the rules of deploy."""
FREE_FILES = 100
WITHOUT_STORE = (
    "writes to tables that are open go on; tables not opened since the start,"
    " and origins that are new here (each new writer of the client library is one), are refused"
    " with 'store'"
)
"""What becomes of writes while the store is away: a first write to a table commits something."""
UNKNOWN_STORE, UNKNOWN_DISK = StoreState(), DiskStatus()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The figures that the rules look at, of one moment."""

    starting: bool = False
    """Whether the daemon has no epoch yet, and answers no calls."""
    fenced: bool = False
    superseded: bool = False
    """Whether another process has claimed this ingester's id, and may not have fenced it yet."""
    log_writing_s: float = 0.0
    """The time for which the log's disk has been writing the group in hand."""
    refusals: frozenset[str] = frozenset()
    """The codes for which an ordinary batch would be refused."""
    store: StoreState = UNKNOWN_STORE
    disk: DiskStatus = UNKNOWN_DISK
    segment_bytes: int = 0
    """The size of a segment of the log: it needs two of them to go on."""
    oldest_unpersisted_s: float | None = None
    oldest_allowed_s: float = float("inf")
    """The age beyond which a row should have been in a file for long."""
    frozen_bytes: int = 0
    """Bytes of frozen buffers, which wait for their files."""
    failed_persists: int = 0
    """Attempts of persists that have failed within the last minute."""
    """Bytes that are resident and that nothing accounts for."""
    certificate_ends_in_s: float | None = None
    certificate_problem: bool = False
    token_problems: int = 0
    """Files of tokens and sets of keys that cannot be read as they are."""
    stalled_s: float = 0.0
    """The longest time within the last minute for which the event loop has stood still."""
    unheard: int = 0
    """Replications of which no replicator reports, or two do."""
    large_slots: int = 0
    """Replications for which the source keeps more than ``SLOT_BYTES`` of its log."""
    set_aside: int = 0
    """Tables of replications that are set aside."""
    hung_calls: int = 0
    """Calls of transformers that were given up and still run."""
    unled_pushes: int = 0
    """Pushes that are under way, and that nobody leads."""
    not_adopted: int = 0
    """Logs that others have left, and that cannot be adopted, or not whole."""


Finding = tuple[Severity, str] | None


def _store_away(facts: Facts) -> Finding:
    store = facts.store
    if store.state != "away":
        return None
    if facts.starting:
        return "critical", "the store does not answer, and the start waits for it: no call is taken"
    if store.reads:
        said = "the store takes no writes: persists wait, rows stay in memory and log"
    else:
        said = "the store does not answer: persists wait, and queries of files fail"
    return "critical", f"{said}; {WITHOUT_STORE}"


def _disk_full(facts: Facts) -> Finding:
    disk = facts.disk
    if disk.full or "disk_full" in facts.refusals:
        lacks = "has no inode left" if disk.log_free_files == 0 else "is full"
        return "critical", f"the log's disk {lacks}: writes are refused, queries go on"
    free, least = disk.log_free_bytes, 4 * facts.segment_bytes
    if free is not None and free < least:
        return "warning", f"the log's disk has {_size(free)} left; below that writes are refused"
    if disk.log_free_files is not None and disk.log_free_files < FREE_FILES:
        return "warning", f"the log's disk has room for {disk.log_free_files} more files (inodes)"
    store = disk.store_free_bytes
    if store is not None and store < least:
        return "warning", f"the store's disk has {_size(store)} left: persists fail without room"
    return None


def _log_stalled(facts: Facts) -> Finding:
    if facts.disk.log_problem is not None:
        said = f"the log's disk takes no writes ({facts.disk.log_problem})"
        return "critical", f"{said}: a batch that reaches it ends the daemon; queries go on"
    if facts.log_writing_s <= STALL_S:
        return None
    waited = _span(facts.log_writing_s)
    return "critical", f"the log's disk has not answered for {waited}: writes wait"


def _memory_high(facts: Facts) -> Finding:
    if "memory" not in facts.refusals:
        return None
    return "critical", "memory is over memory.high: writes are refused, queries go on"


def _saturated(facts: Facts) -> Finding:
    if "saturated" not in facts.refusals:
        return None
    return "critical", "the persist queue is full: writes are refused, queries go on"


def _persist_failing(facts: Facts) -> Finding:
    if facts.failed_persists < FAILED_PERSISTS or not facts.frozen_bytes:
        return None
    failed, waiting = facts.failed_persists, _size(facts.frozen_bytes)
    return "warning", f"{failed} attempts to persist failed in the last minute; {waiting} wait"


def _oldest_row(facts: Facts) -> Finding:
    age_s = facts.oldest_unpersisted_s
    if age_s is None or age_s <= facts.oldest_allowed_s:
        return None
    age, allowed = _span(age_s), _span(facts.oldest_allowed_s)
    return "warning", f"the oldest row that is in no file is {age} old, more than {allowed}"


def _fenced(facts: Facts) -> Finding:
    if facts.fenced:
        return "critical", "another process runs under this ingester's id: this one stops"
    if facts.superseded:
        said = "another process has claimed this ingester's id"
        return "critical", f"{said}: this one stops at the first commit that meets the other's"
    return None


def _certificate(facts: Facts) -> Finding:
    ends_in_s = facts.certificate_ends_in_s
    if ends_in_s is not None and ends_in_s <= 0:
        return "critical", "the certificate has ended: clients refuse it"
    if ends_in_s is not None and ends_in_s < CERTIFICATE_WARN_S:
        severity: Severity = "critical" if ends_in_s < CERTIFICATE_LAST_S else "warning"
        return severity, f"the certificate ends in {_span(ends_in_s)}"
    if facts.certificate_problem:
        return "warning", "the files of [tls] have changed and cannot be used: those before hold"
    return None


def _tokens_not_read(facts: Facts) -> Finding:
    said = "tokens or keys cannot be read as they are: those of before hold, also revoked ones"
    return ("critical", said) if facts.token_problems else None


def _loop_stalled(facts: Facts) -> Finding:
    if facts.stalled_s <= STALL_S:
        return None
    return (
        "warning",
        f"the event loop stood still for {_span(facts.stalled_s)}; nobody was answered",
    )


def _size(nbytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1024
    return f"{nbytes:.4g} TiB"


def _span(seconds: float) -> str:
    for unit, length_s in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.3g} {unit}"
    return f"{seconds:.3g} s"


def _counted(count: int, one: str, many: str, severity: Severity) -> Finding:
    return (severity, f"{count} {one if count == 1 else many}") if count else None


ALARMS: dict[str, Callable[[Facts], Finding]] = {
    "store-away": _store_away,
    "disk-full": _disk_full,
    "log-stalled": _log_stalled,
    "memory-high": _memory_high,
    "saturated": _saturated,
    "persist-failing": _persist_failing,
    "oldest-row": _oldest_row,
    "fenced": _fenced,
    "certificate": _certificate,
    "tokens-not-read": _tokens_not_read,
    "loop-stalled": _loop_stalled,
    "replicator-unheard": lambda facts: _counted(
        facts.unheard,
        "replication has not exactly one replicator that reports",
        "replications have not exactly one replicator that reports",
        "critical",
    ),
    "slot-holds-log": lambda facts: _counted(
        facts.large_slots,
        f"source keeps more than {_size(SLOT_BYTES)} of its log for its replication",
        f"sources keep more than {_size(SLOT_BYTES)} of their log for their replications",
        "critical",
    ),
    "table-set-aside": lambda facts: _counted(
        facts.set_aside,
        "table of a replication is not followed",
        "tables of replications are not followed",
        "warning",
    ),
    "transformer-hangs": lambda facts: _counted(
        facts.hung_calls,
        "call of a transformer was given up and still runs",
        "calls of transformers were given up and still run",
        "warning",
    ),
    "push-stuck": lambda facts: _counted(
        facts.unled_pushes,
        "push is under way and led by nobody",
        "pushes are under way and led by nobody",
        "warning",
    ),
    "not-adopted": lambda facts: _counted(
        facts.not_adopted,
        "log that another daemon has left cannot be adopted, or not whole",
        "logs that other daemons have left cannot be adopted, or not whole",
        "warning",
    ),
}
"""Each alarm and its rule, by the name of its entry in the runbook."""


@dataclass(slots=True)
class _Raised:
    since: float
    so_at: float
    finding: tuple[Severity, str]
    told: Severity
    """The highest severity that was told since it was raised."""


class Alarms:
    """The alarms that are raised. Loop only."""

    def __init__(self) -> None:
        self._raised: dict[str, _Raised] = {}

    def judge(self, facts: Facts, now: float, wall: float) -> tuple[list[Alarm], list[str]]:
        """Look at the figures of now.

        Args:
            now: seconds that never run backwards.
            wall: seconds since 1970.

        Returns:
            The alarms that were raised by this look, or became critical by it, and the names of
            those that fell by it.
        """
        begun = []
        for name, rule in ALARMS.items():
            if (finding := rule(facts)) is None:
                continue
            raised = self._raised.get(name)
            if raised is None:
                raised = self._raised[name] = _Raised(wall, now, finding, finding[0])
                begun.append(_alarm(name, raised))
            raised.so_at, raised.finding = now, finding
            if finding[0] == "critical" != raised.told:
                raised.told = "critical"
                begun.append(_alarm(name, raised))
        gone = [name for name, each in self._raised.items() if now - each.so_at > HOLD_S]
        for name in gone:
            del self._raised[name]
        return begun, gone

    def raised(self) -> list[Alarm]:
        """Return those that are raised: the critical ones first, the oldest of each first."""
        order = sorted(
            self._raised.items(), key=lambda item: (item[1].finding[0] != "critical", item[1].since)
        )
        return [_alarm(name, raised) for name, raised in order]


def _alarm(name: str, raised: _Raised) -> Alarm:
    severity, message = raised.finding
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(raised.since))
    return Alarm(name=name, severity=severity, since=since, message=message, runbook=name)
