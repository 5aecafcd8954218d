"""What the replicator tells of itself, made of what it knows at the moment.

Law of this file: it reads, and asks nobody.
"""

from __future__ import annotations

import time

from ingester.postgres.conditions import notes
from ingester.postgres.planning import Wanted
from ingester.postgres.replicator import Replicator
from ingester.postgres.starting import lsn_text
from ingester.reports.replications import Phase, ReplicationReport, State, TableReport


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
    replicator: Replicator, name: str, wanted: Wanted | None, lag: tuple[int | None, float | None]
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
