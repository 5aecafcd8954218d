"""The report that a replicator sends the daemon about once a second.

    waiting ─▶ copying ─▶ catching_up ─▶ following
       ▲                                     ├──▶ left: dropped at the source
       └──────── set_aside ◀─ an error ──────┘

A report is for people and decides nothing; the tables' states do (:mod:`ingester.postgres.states`).
Its size is bounded by :func:`bounded`, which both sides call: names and reasons are cut, control
characters are escaped, and tables beyond the limit are counted rather than named.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import accumulate
from typing import Annotated, Literal, TypeVar, get_args

import msgspec

Phase = Literal["set_aside", "copying", "catching_up", "waiting", "left", "following"]
PHASES: tuple[Phase, ...] = get_args(Phase)
"""All phases, in the order in which tables are shown."""
State = Literal["running", "trying_again", "ended"]
MOST_TABLES = 2_000
"""The most tables that a report names; the others are counted."""
MAX_REPORT_BYTES = 1 << 20
"""The largest JSON of a report; tables beyond it are counted."""
MOST_TEXTS = 5
"""The most helps, and the most notes, of a table."""
_COUNTS_BYTES = 200
"""Space reserved for the counts of omitted tables."""
_NAME, _TEXT = 255, 600
"""The longest name and the longest sentence, in characters."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
_Number = TypeVar("_Number", int, float)


class TableReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table of a replication; unknown values are null.

    Attributes:
        table: Its name in the daemon.
        source: Its name at the source, as ``public.orders``.
        reason: Why it is in this phase; for ``set_aside``, the error.
        since: When the phase began, ISO 8601 in UTC.
        helps: What an operator can do, a sentence or a command each.
        rows_done: Rows copied so far.
        rows_total: Rows of the whole copy, as the source estimates.
        bytes_done: Bytes copied so far.
        lag_bytes: Bytes of the source's log not yet applied to the table.
        lag_s: Seconds by which the table is behind its source.
        rows: Row changes applied since the replicator started.
        notes: Differences from the source, such as an omitted generated column.
    """

    table: str
    source: str
    phase: Phase
    reason: str = ""
    since: str = ""
    helps: tuple[str, ...] = ()
    rows_done: Count | None = None
    rows_total: Count | None = None
    bytes_done: Count | None = None
    lag_bytes: Count | None = None
    lag_s: Seconds | None = None
    rows: Count | None = None
    notes: tuple[str, ...] = ()


class ReplicationReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One replicator: its source, its progress, and its tables.

    Attributes:
        source: The server and the database, without secrets.
        state: ``running`` with a session at the source, ``trying_again``, or ``ended``.
        reason: Why it is trying again, or has ended.
        position: Everything in the source's log up to here is durable, as ``0/16B3748``.
        applied: Queries see every followed table up to this position in the source's log.
        lag_bytes: Bytes of the source's log not yet applied.
        lag_s: Seconds by which the copy is behind its source.
        slot_bytes: Bytes of log that the source retains for the slot.
        retries: Sessions that have failed since the replicator started.
        reporter: Distinguishes two replicators of one origin; the sender fills it in.
        left_out: The number of tables not named, by phase.
    """

    origin: str
    namespace: str
    source: str
    slot: str
    state: State = "running"
    reason: str = ""
    position: str | None = None
    applied: str | None = None
    lag_bytes: Count | None = None
    lag_s: Seconds | None = None
    slot_bytes: Count | None = None
    retries: Count = 0
    reporter: str = ""
    tables: tuple[TableReport, ...] = ()
    left_out: dict[Phase, Count] = {}

    def count_phases(self) -> dict[Phase, int]:
        """Count the tables of each phase, including those not named."""
        counts = {phase: self.left_out.get(phase, 0) for phase in PHASES}
        for table in self.tables:
            counts[table.phase] += 1
        return counts


def bounded(report: ReplicationReport) -> ReplicationReport:
    """Return the report within its bounds, with tables in order of phase and name. Idempotent."""
    order = {phase: number for number, phase in enumerate(PHASES)}
    tables = sorted(report.tables, key=lambda each: (order[each.phase], each.table, each.source))
    head = msgspec.structs.replace(
        report,
        origin=plain(report.origin, _NAME),
        namespace=plain(report.namespace, _NAME),
        source=plain(report.source, _NAME),
        slot=plain(report.slot, _NAME),
        reason=plain(report.reason),
        position=None if report.position is None else plain(report.position, _NAME),
        applied=None if report.applied is None else plain(report.applied, _NAME),
        lag_bytes=_counted(report.lag_bytes),
        lag_s=_counted(report.lag_s),
        slot_bytes=_counted(report.slot_bytes),
        reporter=plain(report.reporter, _NAME),
        tables=(),
    )
    left_out = dict(report.left_out)
    kept = [_bounded_table(each) for each in tables[:MOST_TABLES]]
    _count(left_out, tables[MOST_TABLES:])
    whole = msgspec.structs.replace(head, tables=tuple(kept), left_out=left_out)
    if len(msgspec.json.encode(whole)) <= MAX_REPORT_BYTES:
        return whole
    fitting = _fitting(kept, MAX_REPORT_BYTES - len(msgspec.json.encode(head)) - _COUNTS_BYTES)
    _count(left_out, kept[fitting:])
    return msgspec.structs.replace(head, tables=tuple(kept[:fitting]), left_out=left_out)


def _count(left_out: dict[Phase, int], tables: Iterable[TableReport]) -> None:
    for each in tables:
        left_out[each.phase] = left_out.get(each.phase, 0) + 1


def _fitting(tables: Iterable[TableReport], most_bytes: int) -> int:
    """Return how many of the first tables fit into ``most_bytes`` of JSON."""
    sizes = accumulate(len(msgspec.json.encode(each)) + 1 for each in tables)
    return sum(nbytes <= most_bytes for nbytes in sizes)


def plain(text: str, most: int = _TEXT) -> str:
    """Return a text on one line, escaped, of at most ``most`` + 1 characters.

    Line breaks and tabs become spaces.
    """
    if not text.isprintable():
        text = " ".join(text[: 2 * most].split())
        text = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
    return text if len(text) <= most + 1 else f"{text[:most]}…"


def _bounded_table(table: TableReport) -> TableReport:
    if _is_bounded(table):  # the usual case; a report comes every second and may have 2,000 tables
        return table
    return TableReport(
        table=plain(table.table, _NAME),
        source=plain(table.source, _NAME),
        phase=table.phase,
        reason=plain(table.reason),
        since=plain(table.since, _NAME),
        helps=_texts(table.helps),
        rows_done=_counted(table.rows_done),
        rows_total=_counted(table.rows_total),
        bytes_done=_counted(table.bytes_done),
        lag_bytes=_counted(table.lag_bytes),
        lag_s=_counted(table.lag_s),
        rows=_counted(table.rows),
        notes=_texts(table.notes),
    )


def _is_bounded(table: TableReport) -> bool:
    names = table.table + table.source + table.since
    words = table.reason
    if table.helps or table.notes or len(words) > _TEXT or len(names) > _NAME:
        return False
    if not names.isprintable() or not words.isprintable():
        return False
    figures = (table.rows_done, table.rows_total, table.bytes_done, table.lag_bytes, table.rows)
    seconds = table.lag_s
    return all(each is None or 0 <= each < 2**63 for each in figures) and (
        seconds is None or 0 <= seconds < math.inf
    )


def _texts(texts: Iterable[str]) -> tuple[str, ...]:
    found = tuple(texts)
    shown = tuple(plain(each) for each in found[:MOST_TEXTS])
    return (
        shown
        if len(found) <= MOST_TEXTS
        else (*shown[:-1], f"and {len(found) - MOST_TEXTS + 1} more")
    )


def _counted(number: _Number | None) -> _Number | None:
    """Clamp a number to its range: two machines' clocks can make a lag negative."""
    if number is None or not math.isfinite(number):
        return None
    return min(max(number, type(number)(0)), type(number)(2**63 - 1))
