"""Replications as lines and rows for people.

Law of this file: pure. Tables that do not follow come first and in full; of those that do, few are
shown and the rest is counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .printing import Lines, size
from .replication_facts import ReplicatedTable, Replication

SUMMARY = ("namespace", "source", "origin", "replicator", "behind by", "tables", "last heard")
TABLES = ("table", "source", "phase", "since", "behind by", "why, and what to do")
FOLLOWING_SHOWN = 20

Row = tuple[object, ...]


def summary(of: Replication) -> Row:
    """Return the row of a replication in a list of several."""
    heard = None if of.heard_s is None else f"{of.heard_s:,.0f} s ago"
    lag = _lag(of.lag_s, of.lag_bytes)
    return of.namespace, of.source, of.origin, _replicator(of), lag, phases(of.phases), heard


def lines(of: Replication) -> Iterator[str]:
    """Yield what there is to say of a replication before its tables."""
    yield f"{of.namespace} from {of.source}: {_replicator(of)}"
    yield f"  origin {of.origin}, slot {of.slot or '-'}; durable here up to {of.position or '-'}"
    if of.known_by == "states":
        yield (
            f"  no replicator reports; the newest of its tables' states is of {of.heard_at or '-'}"
        )
    elif not of.alive:
        ago = f"{of.heard_s or 0:,.0f} s ago"
        yield f"  last heard {of.heard_at} ({ago}): below is what it said then"
    else:
        kept = "" if of.slot_bytes is None else f"; the source keeps {size(of.slot_bytes)} of log"
        lag, ago = _lag(of.lag_s, of.lag_bytes), f"{of.heard_s or 0:,.0f} s ago"
        yield f"  behind by {lag} (heard {ago}){kept}"
    if of.reason:
        retries = f" ({of.retries:,} failed sessions)" if of.retries else ""
        yield f"  {of.state.replace('_', ' ')}: {of.reason}{retries}"
    if of.rivals:
        yield f"  {of.rivals + 1} replicators report this origin in turns: stop all but one"
    yield f"  tables: {phases(of.phases)}"


def rows(of: Replication) -> list[Row]:
    """Return the rows of its tables, and one that counts those without a row."""
    others = [each for each in of.tables if each.phase != "following"]
    following = [each for each in of.tables if each.phase == "following"]
    shown = [*others, *following[:FOLLOWING_SHOWN]]
    left = dict(of.left_out)
    if len(following) > FOLLOWING_SHOWN:
        left["following"] = left.get("following", 0) + len(following) - FOLLOWING_SHOWN
    found = [_row(each) for each in shown]
    if any(left.values()):
        found.append((f"and {phases(left)}", "", "", "", "", ""))
    return found


def phases(counts: Mapping[str, int]) -> str:
    """Return how many tables are in each phase, as ``1 set aside, 40 following``."""
    told = (f"{count:,} {phase.replace('_', ' ')}" for phase, count in counts.items() if count)
    return ", ".join(told) or "none"


def _row(table: ReplicatedTable) -> Row:
    helps, notes = (f"to do: {each}" for each in table.helps), (f"note: {n}" for n in table.notes)
    why = [part for part in (table.reason, *helps, *notes) if part]
    phase = table.phase.replace("_", " ") + _progress(table)
    lag = _lag(table.lag_s, table.lag_bytes)
    return table.table, table.source, phase, table.since or "-", lag, Lines(why or ["-"])


def _progress(table: ReplicatedTable) -> str:
    if table.rows_done is None or table.phase != "copying":
        return ""
    whole = f" of about {table.rows_total:,}" if table.rows_total else ""
    read = f", {size(table.bytes_done)}" if table.bytes_done is not None else ""
    return f": {table.rows_done:,}{whole} rows{read}"


def _lag(seconds: float | None, nbytes: int | None) -> str:
    parts = ["" if seconds is None else f"{seconds:,.1f} s", "" if nbytes is None else size(nbytes)]
    return ", ".join(part for part in parts if part) or "-"


def _replicator(of: Replication) -> str:
    if of.alive:
        return of.state.replace("_", " ")
    if of.known_by == "states":
        return "not running"
    return "ended" if of.state == "ended" else "not heard of"
