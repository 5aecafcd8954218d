"""Builds reports of a replicator and sends them to the daemon.

    replicator ─ tell ─▶ the newest report ─ a thread, once a second ─▶ daemon

Reports are best effort: they never raise and never delay replication, except that the last one is
waited for, :data:`LAST_S` at most. A replicator that hangs sends no reports, and is shown as not
heard of (``tests/postgres/test_reports.py``).
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Self

import msgspec

from ingester.client import (
    NEVER,
    Client,
    ClientError,
    ConnectionOptions,
    TimedOut,
    Unavailable,
    Unimplemented,
    Unreachable,
)
from ingester.postgres.conditions import notes
from ingester.postgres.planning import WantedTable
from ingester.postgres.replicator import Replicator
from ingester.postgres.starting import lsn_text
from ingester.reports.replications import Phase, ReplicationReport, State, TableReport, bounded


def report_of(replicator: Replicator, *, ended: str | None = None) -> ReplicationReport:
    """Return the report of a replicator.

    Args:
        ended: Why it has ended; empty where somebody has stopped it.
    """
    options, started, positions = replicator.options, replicator.started, replicator.positions
    lag_bytes: int | None = None
    lag_s: float | None = None
    position = applied = None
    if positions is not None:
        lag_bytes = max(0, replicator.server_lsn - replicator.server_lsn_read())
        behind = lag_bytes > 0 and positions.committed_at > 0
        lag_s = max(0.0, time.time() - positions.committed_at) if behind else 0.0
        position = lsn_text(max(positions.safe, positions.confirmed))
        applied = lsn_text(max(replicator.server_lsn_read(), 0))
    source, origin = "", options.origin
    if started is not None:
        source = f"database {started.server.database}, system {started.server.system_identifier}"
        origin = started.tables.origin
    return ReplicationReport(
        origin=origin,
        namespace=options.namespace,
        source=source,
        slot=options.slot,
        state=_state(replicator, ended),
        reason=replicator.reason if ended is None else ended,
        position=position,
        applied=applied,
        lag_bytes=lag_bytes,
        lag_s=lag_s,
        slot_bytes=_slot_bytes(replicator),
        retries=replicator.retries,
        tables=tuple(_tables(replicator, lag_bytes, lag_s)),
    )


def _slot_bytes(replicator: Replicator) -> int | None:
    looked = replicator.looked
    if looked is None or looked.kept_from is None:
        return None
    return max(0, replicator.server_lsn - looked.kept_from)


def _state(replicator: Replicator, ended: str | None) -> State:
    if ended is not None:
        return "ended"
    return "trying_again" if replicator.reason else "running"


def _tables(
    replicator: Replicator, lag_bytes: int | None, lag_s: float | None
) -> list[TableReport]:
    if replicator.started is None:
        return []
    tables = replicator.started.tables
    looked = () if replicator.looked is None else replicator.looked.tables
    wanted = {each.target: each for each in reversed(looked)}
    found = []
    with tables.lock:
        names = sorted({*wanted, *tables.have})
        for name in names:
            found.append(_table(replicator, name, wanted.get(name), (lag_bytes, lag_s)))
    return found


def _table(
    replicator: Replicator,
    name: str,
    wanted: WantedTable | None,
    lag: tuple[int | None, float | None],
) -> TableReport:
    assert replicator.started is not None
    tables = replicator.started.tables
    state, aside, order = tables.have.get(name), tables.aside.get(name), tables.orders.get(name)
    facts = wanted.facts if wanted is not None else None if state is None else state.facts
    copying = None if replicator.copier is None else replicator.copier.progress
    is_copied = copying is not None and copying.target == name
    phase: Phase = "following"
    reason, since = "", ""
    helps: tuple[str, ...] = ()
    if is_copied:
        phase, reason = "copying", "" if order is None else order.reason
    elif aside is not None:
        phase, (reason, since, helps) = "set_aside", aside
    elif state is not None and state.phase == "left":
        phase, reason, since = "left", state.reason, state.since
    elif order is not None:
        phase, reason = "waiting", order.reason
    elif state is None:
        phase = "waiting"
    elif replicator.positions is not None and replicator.positions.catching_up:
        phase = "catching_up" if state.from_lsn > replicator.positions.read_upto else "following"
    follows = phase in ("following", "catching_up")
    if follows and state is not None:
        since = state.since
    return TableReport(
        table=name,
        source="" if facts is None else facts.full_name,
        phase=phase,
        reason=reason,
        since=since,
        helps=helps,
        rows_done=copying.rows if copying is not None and is_copied else None,
        rows_total=copying.rows_total if copying is not None and is_copied else None,
        bytes_done=copying.nbytes if copying is not None and is_copied else None,
        lag_bytes=lag[0] if follows else None,
        lag_s=lag[1] if follows else None,
        rows=replicator.progress.rows[name],
        notes=() if facts is None else tuple(notes(facts)),
    )


EVERY_S = 1.0
"""A report is sent so often, and where one takes long (very many tables) less often."""
SHARE = 20
"""At most a 20th of the time goes into making and sending reports."""
TIMEOUT_S = 2.0
AWAY_S = 5.0
"""The pause while the daemon is away."""
REFUSED_S = 60.0
"""The pause where the daemon does not take reports: it may be replaced by a newer one."""
LAST_S = 2.0
"""The last report is waited for so long."""

Make = Callable[[], ReplicationReport]


class ReportSender:
    """Sends reports from a thread of its own, while it is entered.

    Args:
        endpoint: The daemon's, as :class:`Client` takes it.
        say: Told in a line what is wrong with reports, each once.
        every_s: The pause between two of them.
        options: As :class:`Client` takes them.
    """

    def __init__(
        self,
        endpoint: str,
        say: Callable[[str], None],
        *,
        every_s: float = EVERY_S,
        options: ConnectionOptions | None = None,
    ) -> None:
        self._client = Client(endpoint, retry=NEVER, timeout_s=TIMEOUT_S, options=options)
        self._say = say
        self._every_s = every_s
        self._reporter = uuid.uuid4().hex[:12]
        self._said: set[str] = set()
        self._changed = threading.Condition()
        self._newest: ReplicationReport | None = None
        self._closed = False
        self._due_at = 0.0
        self._thread = threading.Thread(target=self._run, name="ingester-reports", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Send what was told last, if the daemon takes it at once, and end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(LAST_S)
        self._client.close()

    def tell(self, make: Make, *, last: bool = False) -> None:
        """Have the report that ``make`` gives sent. Quick, and raises nothing.

        Call it at least every 10 s, also while a table is copied or the source is away.

        Args:
            make: Called at once, in this thread, and only if the last report was sent a second ago.
                A report without an origin is not sent: the replicator does not know it yet.
            last: The replicator ends: it is made and sent in any case.
        """
        if not last and time.monotonic() < self._due_at:
            return
        began = time.monotonic()
        try:
            report = msgspec.structs.replace(bounded(make()), reporter=self._reporter)
        except Exception as exc:  # a report is never worth a replication
            self._say_once(f"a report of the replication could not be made: {exc!r}")
            self._due_at = began + REFUSED_S
            return
        if not report.origin:
            return
        took_s = time.monotonic() - began
        with self._changed:
            self._newest = report
            self._due_at = began + max(self._every_s, SHARE * took_s)
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._newest is None and not self._closed:
                    self._changed.wait()
                report, self._newest = self._newest, None
            if report is None:
                return
            began = time.monotonic()
            pause_s = self._send(report)
            with self._changed:
                self._due_at = max(self._due_at, began + pause_s)

    def _send(self, report: ReplicationReport) -> float:
        """Send a report; return the least time until the next one is."""
        began = time.monotonic()
        try:
            self._client.action("replication_report", msgspec.to_builtins(report))
        except (Unreachable, TimedOut, Unavailable):
            return AWAY_S  # the replicator itself tells of a daemon that is away
        except Unimplemented:
            self._say_once(
                "this daemon is an older one and shows no replications;"
                " `ingester replicate status` tells of the tables' states"
            )
            return REFUSED_S
        except ClientError as exc:
            self._say_once(f"the daemon does not take reports of the replication: {exc}")
            return REFUSED_S
        except Exception as exc:
            self._say_once(f"a report of the replication could not be sent: {exc!r}")
            return REFUSED_S
        return max(self._every_s, SHARE * (time.monotonic() - began))

    def _say_once(self, text: str) -> None:
        if text not in self._said and len(self._said) < 100:
            self._said.add(text)
            self._say(text)
