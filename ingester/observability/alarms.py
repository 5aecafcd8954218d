"""The alarms: conditions that an operator has to act on, as rules over the daemon's facts.

    facts ─▶ rule ──▶ raised at once ──▶ held until HOLD_S after it last applied ──▶ cleared

A rule is one function from :class:`Facts` to a finding, and no rule depends on another. An alarm
has the name of its entry in ``deploy/RUNBOOK.md``. Messages name no namespace and no table, because
every caller of the status may read them. Pure: the time is an argument.

To add an alarm, write its rule and put it into ``ALARMS``; ``tests/observability/test_alarms``
requires its entry in the runbook and in ``docs/operations.md``, and a test.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ingester.observability.facts import Facts
from ingester.observability.status import Alarm, Severity

HOLD_S = 10.0
"""An alarm is cleared when its rule has not applied for this long, so that it does not flap."""
FAILED_PERSISTS = 3
"""Fewer failed attempts within a minute are ordinary retries."""
CERTIFICATE_WARN_S, CERTIFICATE_LAST_S = 14 * 86400.0, 86400.0
STALL_S = 5.0
"""How long the event loop or a write of the log may be blocked without an alarm."""
STORE_LOG_S = 10.0
"""How long an operation may wait for its log object without an alarm."""
BEHIND_S = 60.0
"""How long a version may wait to be published without an alarm."""
SLOT_BYTES = 20 << 30
"""How much log a replication's source may retain without an alarm, as in ``deploy/prometheus``."""
FREE_FILES = 100
WITHOUT_STORE = (
    "writes to open tables continue; tables not opened since the start, and new origins (each new"
    " writer of the client library is one), are refused with 'store'"
)
"""The effect of an unreachable store on writes: the first write to a table needs a commit."""

Finding = tuple[Severity, str] | None


def _store_away(facts: Facts) -> Finding:
    store = facts.store
    if store.state != "away":
        return None
    if facts.starting:
        return (
            "critical",
            "the store is unreachable, and the start waits for it: no calls are accepted",
        )
    if store.reads:
        said = "the store accepts no writes: flushes wait, rows stay in memory and log"
    else:
        said = "the store is unreachable: flushes wait, and queries of files fail"
    return "critical", f"{said}; {WITHOUT_STORE}"


def _disk_full(facts: Facts) -> Finding:
    disk = facts.disk
    if disk.full or "disk_full" in facts.refusals:
        lacks, needed = "is full", 2 * facts.segment_bytes
        if disk.log_free_files == 0:
            lacks = "has no free inodes"
        elif disk.log_free_bytes is not None and disk.log_free_bytes < needed:
            left = _size(disk.log_free_bytes)
            lacks += f" ({left} left, segments need {_size(needed)})"
        return "critical", f"the log's disk {lacks}: writes are refused, queries continue"
    free, least = disk.log_free_bytes, 4 * facts.segment_bytes
    if free is not None and free < least:
        return (
            "warning",
            f"the log's disk has {_size(free)} left; writes are refused when it is full",
        )
    if disk.log_free_files is not None and disk.log_free_files < FREE_FILES:
        return "warning", f"the log's disk has room for {disk.log_free_files} more files (inodes)"
    store = disk.store_free_bytes
    if store is not None and store < least:
        return "warning", f"the store's disk has {_size(store)} left; flushes fail when it is full"
    return None


def _log_stalled(facts: Facts) -> Finding:
    if facts.disk.log_problem is not None:
        said = f"the log's disk accepts no writes ({facts.disk.log_problem})"
        return "critical", f"{said}: the next batch stops the daemon; queries continue"
    if facts.log_writing_s <= STALL_S:
        return None
    waited = _span(facts.log_writing_s)
    return "critical", f"the log's disk has not answered for {waited}: writes wait"


def _store_log_stalled(facts: Facts) -> Finding:
    waited_s = facts.store_log.oldest_waiting_s
    if waited_s is None or waited_s <= STORE_LOG_S:
        return None
    said = f"the oldest batch has waited for its log object for {_span(waited_s)}"
    if facts.store_log.disk:
        return "critical", f"{said}: writes at 'store' wait; writes at 'disk' continue"
    return "critical", f"{said}: writes wait; queries continue"


def _operations_lost(facts: Facts) -> Finding:
    lost = facts.store_log.lost
    if not lost:
        return None
    operations = sum(each.operations for each in lost)
    tables = len({(each.namespace, each.table) for each in lost})
    said = "1 table" if tables == 1 else f"{tables} tables"
    counted = "1 operation" if operations == 1 else f"{operations} operations"
    return "warning", f"lost with a disk, acknowledged at 'disk': about {counted} of {said}"


def _memory_high(facts: Facts) -> Finding:
    if "memory" not in facts.refusals:
        return None
    return "critical", "memory is over memory.high: writes are refused, queries continue"


def _saturated(facts: Facts) -> Finding:
    if "saturated" not in facts.refusals:
        return None
    return "critical", "the persist queue is full: writes are refused, queries continue"


def _persist_failing(facts: Facts) -> Finding:
    if facts.unencodable:
        said = "1 buffer" if facts.unencodable == 1 else f"{facts.unencodable} buffers"
        return "warning", f"{said} cannot be written to files; the rows stay in the log"
    if facts.failed_persists < FAILED_PERSISTS or not facts.frozen_bytes:
        return None
    failed, waiting = facts.failed_persists, _size(facts.frozen_bytes)
    return "warning", f"{failed} attempts to flush failed in the last minute; {waiting} are waiting"


def _oldest_row(facts: Facts) -> Finding:
    if facts.overdue is None:
        return None
    age, allowed = _span(facts.overdue.age_s), _span(facts.overdue.allowed_s)
    return "warning", f"the oldest unflushed row is {age} old, more than {allowed}"


def _publish_behind(facts: Facts) -> Finding:
    behind = facts.publishing
    if behind.seconds_behind <= BEHIND_S:
        return None
    waits = _span(behind.seconds_behind)
    return "warning", f"a version has waited for {waits} to be published in an open format"


def _fenced(facts: Facts) -> Finding:
    if facts.identity.state == "fenced":
        return "critical", "another process runs under this ingester's id: this one stops"
    if facts.superseded:
        said = "another process has claimed this ingester's id"
        return "critical", f"{said}: this one stops at its next commit"
    return None


def _certificate(facts: Facts) -> Finding:
    certificate = facts.security.certificate
    if certificate is None:
        return None
    ends_in_s = certificate.ends_in_s
    if ends_in_s <= 0:
        return "critical", "the certificate has expired: clients refuse it"
    if ends_in_s < CERTIFICATE_WARN_S:
        severity: Severity = "critical" if ends_in_s < CERTIFICATE_LAST_S else "warning"
        return severity, f"the certificate expires in {_span(ends_in_s)}"
    if certificate.problem is not None:
        said = "the changed files of [tls] cannot be loaded; the previous ones are in use"
        return "warning", said
    return None


def _tokens_not_read(facts: Facts) -> Finding:
    said = "tokens or keys cannot be read; the previous ones remain valid, even if revoked"
    return ("critical", said) if facts.security.callers.problems else None


def _loop_stalled(facts: Facts) -> Finding:
    if facts.stalled_s <= STALL_S:
        return None
    return (
        "warning",
        f"the event loop was blocked for {_span(facts.stalled_s)}; no call was answered",
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
    "store-log-stalled": _store_log_stalled,
    "operations-lost": _operations_lost,
    "memory-high": _memory_high,
    "saturated": _saturated,
    "persist-failing": _persist_failing,
    "oldest-row": _oldest_row,
    "publish-behind": _publish_behind,
    "publish-stopped": lambda facts: _counted(
        facts.publishing.stopped,
        "table is not published in one of its open formats",
        "tables are not published in one of their open formats",
        "warning",
    ),
    "fenced": _fenced,
    "certificate": _certificate,
    "tokens-not-read": _tokens_not_read,
    "loop-stalled": _loop_stalled,
    "replicator-unheard": lambda facts: _counted(
        sum(not each.alive or each.rivals > 0 for each in facts.replications),
        "replication does not have exactly one reporting replicator",
        "replications do not have exactly one reporting replicator",
        "critical",
    ),
    "slot-holds-log": lambda facts: _counted(
        sum(each.alive and (each.slot_bytes or 0) > SLOT_BYTES for each in facts.replications),
        f"source retains more than {_size(SLOT_BYTES)} of log for its replication",
        f"sources retain more than {_size(SLOT_BYTES)} of log for their replications",
        "critical",
    ),
    "table-set-aside": lambda facts: _counted(
        sum(each.phases.get("set_aside", 0) for each in facts.replications),
        "replicated table is set aside",
        "replicated tables are set aside",
        "warning",
    ),
    "transformer-hangs": lambda facts: _counted(
        sum(facts.transform.hung_calls.values()),
        "timed-out call of a transformer still runs",
        "timed-out calls of transformers still run",
        "warning",
    ),
    "push-stuck": lambda facts: _counted(
        sum(each.ended_at is None and not each.led for each in facts.pushes),
        "push is active without a controller",
        "pushes are active without a controller",
        "warning",
    ),
    "not-adopted": lambda facts: _counted(
        sum(each.state in ("failed", "refused") for each in facts.adoptions),
        "log of another daemon cannot be adopted completely",
        "logs of other daemons cannot be adopted completely",
        "warning",
    ),
}
"""Each alarm's rule by name."""


@dataclass(slots=True)
class _Raised:
    since: float
    so_at: float
    finding: tuple[Severity, str]
    told: Severity
    """The highest severity that was logged since it was raised."""


class Alarms:
    """The alarms that are raised. Loop only."""

    def __init__(self) -> None:
        self._raised: dict[str, _Raised] = {}

    def judge(self, facts: Facts, now: float, wall: float) -> tuple[list[Alarm], list[str]]:
        """Apply all rules.

        Args:
            now: monotonic seconds.
            wall: seconds since 1970.

        Returns:
            The alarms that this call has raised or made critical, and the names of those it has
            cleared.
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
        """Return the raised alarms: critical ones first, the oldest first of each severity."""
        order = sorted(
            self._raised.items(), key=lambda item: (item[1].finding[0] != "critical", item[1].since)
        )
        return [_alarm(name, raised) for name, raised in order]


def _alarm(name: str, raised: _Raised) -> Alarm:
    severity, message = raised.finding
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(raised.since))
    return Alarm(name=name, severity=severity, since=since, message=message, runbook=name)
