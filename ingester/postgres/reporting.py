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
from ingester.postgres.copying import Copying
from ingester.postgres.planning import WantedTable
from ingester.postgres.replicator import Replicator, Running
from ingester.postgres.tables import SetAsideReason, Tables
from ingester.postgres.timelines import lsn_text
from ingester.reports.replications import Phase, ReplicationReport, State, TableReport, bounded

EVERY_S = 1.0
"""The interval of reports; longer if building or sending one is slow."""
SHARE = 20
"""Reports take at most a 20th of the time."""
TIMEOUT_S = 2.0
AWAY_S = 5.0
"""The pause while the daemon is unreachable."""
REFUSED_S = 60.0
"""The pause if the daemon does not accept reports; an upgrade may change that."""
LAST_S = 2.0
"""How long the last report is waited for."""


def report_of(replicator: Replicator, *, ended: str | None = None) -> ReplicationReport:
    """The current report of a replicator.

    Args:
        ended: why it has ended; empty after a signal.
    """
    options, running, positions = replicator.options, replicator.running, replicator.positions
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
    slot_bytes: int | None = None
    tables: list[TableReport] = []
    if running is not None:
        server = running.started.server
        source = f"database {server.database}, system {server.system_identifier}"
        origin = running.tables.origin
        tables = _tables(replicator, running, (lag_bytes, lag_s))
        looked = running.watch.looked
        if looked is not None and looked.kept_from is not None:
            slot_bytes = max(0, replicator.server_lsn - looked.kept_from)
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
        slot_bytes=slot_bytes,
        retries=replicator.retries,
        tables=tuple(tables),
    )


def _state(replicator: Replicator, ended: str | None) -> State:
    if ended is not None:
        return "ended"
    return "trying_again" if replicator.reason else "running"


def _tables(
    replicator: Replicator, running: Running, lag: tuple[int | None, float | None]
) -> list[TableReport]:
    tables, looked = running.tables, running.watch.looked
    wanted = {each.target: each for each in reversed(looked.tables)} if looked else {}
    with tables.lock:
        names = sorted({*wanted, *tables.have})
        return [_table(replicator, running, name, wanted.get(name), lag) for name in names]


def _table(
    replicator: Replicator,
    running: Running,
    name: str,
    wanted: WantedTable | None,
    lag: tuple[int | None, float | None],
) -> TableReport:
    state = running.tables.have.get(name)
    facts = wanted.facts if wanted is not None else None if state is None else state.facts
    copying = running.copier.progress
    copying = copying if copying is not None and copying.target == name else None
    catching_up = (
        replicator.positions is not None
        and replicator.positions.catching_up
        and state is not None
        and state.from_lsn > replicator.positions.read_upto
    )
    phase, (reason, since, helps) = _phase(running.tables, name, copying, catching_up=catching_up)
    follows = phase in ("following", "catching_up")
    return TableReport(
        table=name,
        source="" if facts is None else facts.full_name,
        phase=phase,
        reason=reason,
        since=since,
        helps=helps,
        rows_done=None if copying is None else copying.rows,
        rows_total=None if copying is None else copying.rows_total,
        bytes_done=None if copying is None else copying.nbytes,
        lag_bytes=lag[0] if follows else None,
        lag_s=lag[1] if follows else None,
        rows=replicator.progress.rows[name],
        notes=() if facts is None else tuple(notes(facts)),
    )


def _phase(
    tables: Tables, name: str, copying: Copying | None, *, catching_up: bool
) -> tuple[Phase, SetAsideReason]:
    """A table's phase, with its reason, beginning and helps; the first that applies."""
    state, aside, order = tables.have.get(name), tables.aside.get(name), tables.orders.get(name)
    reason = "" if order is None else order.reason
    if copying is not None:
        return "copying", SetAsideReason(reason, "")
    if aside is not None:
        return "set_aside", aside
    if state is not None and state.phase == "left":
        return "left", SetAsideReason(state.reason, state.since)
    if order is not None or state is None:
        return "waiting", SetAsideReason(reason, "")
    return "catching_up" if catching_up else "following", SetAsideReason("", state.since)


Make = Callable[[], ReplicationReport]


class ReportSender:
    """Sends reports from its own thread, as a context manager.

    Args:
        endpoint: As :class:`Client` takes it.
        say: Called once for each kind of failure, with a line.
        every_s: The interval of reports.
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
        """Send the last report, if the daemon accepts it at once, and end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(LAST_S)
        self._client.close()

    def tell(self, make: Make, *, last: bool = False) -> None:
        """Queue the report that ``make`` returns. Quick; never raises.

        Call it at least every 10 s, also during a copy or while the source is unreachable.

        Args:
            make: called here if a report is due. A report without an origin is not sent: the
                replicator does not know it yet.
            last: the replicator ends; the report is always made and sent.
        """
        if not last and time.monotonic() < self._due_at:
            return
        began = time.monotonic()
        try:
            report = msgspec.structs.replace(bounded(make()), reporter=self._reporter)
        except Exception as exc:  # a report must not stop replication
            self._say_once(f"could not build a replication report: {exc!r}")
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
        """Send a report; return the pause until the next one."""
        began = time.monotonic()
        try:
            self._client.action("replication_report", msgspec.to_builtins(report))
        except (Unreachable, TimedOut, Unavailable):
            return AWAY_S  # the replicator reports an unreachable daemon itself
        except Unimplemented:
            self._say_once(
                "this daemon is older and does not show replications;"
                " `ingester replicate status` shows the tables' states"
            )
            return REFUSED_S
        except ClientError as exc:
            self._say_once(f"the daemon refuses replication reports: {exc}")
            return REFUSED_S
        except Exception as exc:
            self._say_once(f"could not send a replication report: {exc!r}")
            return REFUSED_S
        return max(self._every_s, SHARE * (time.monotonic() - began))

    def _say_once(self, text: str) -> None:
        if text not in self._said and len(self._said) < 100:
            self._said.add(text)
            self._say(text)
