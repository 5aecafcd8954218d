"""Whether the source's log is the one that was read: its timelines, and where it ends.

    states, sequences ─▶ positions ┐
    timelines of the server ───────┼▶ all positions are in its log ─▶ note_history, start
    end of its log ────────────────┘└▶ some are not ─▶ refused, now and later, until --resync-all

Each table's state contains the timelines of its positions. They are stored before anything of a new
timeline is sent (``tests/postgres/test_failover.py``). A server that was restored from a copy of
its files stays on its timeline: its log is shorter than what was read, or lacks the last
transaction that was read. It is recognized by its slot from then on.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from ingester.client import NotFound
from ingester.postgres.options import Options
from ingester.postgres.positions import catch_up_name
from ingester.postgres.server_errors import SourceFailed
from ingester.postgres.slot import FoundSlot, current_lsn, extend_log
from ingester.postgres.states import History, SlotPlace
from ingester.postgres.tables import Tables, newest_place
from ingester.postgres.timelines import kept, lsn_text, shared_upto

MOST_EXTENDED = 64 << 20
"""``--resync-all`` extends a log that is shorter than what was read by at most this."""
CRASH_HELPS = (
    "the server's log says which process crashed and why",
    "an interrupted ALTER TABLE … DETACH PARTITION … CONCURRENTLY is a known cause: finish it with"
    " FINALIZE, and start once with --resync-all, as its rows stay in the log of the slot",
    "start once with --resume to read on from the same position",
)
COPIES_ALL = "--resync-all copies all tables again"


class ServerLog(NamedTuple):
    """The log of a server."""

    system_identifier: str
    history: History


def check_log(
    connection: Any,
    options: Options,
    tables: Tables,
    server: ServerLog,
    slot: FoundSlot | None,
) -> None:
    """Refuse a source whose log lacks what was read from it; a new copy needs a longer log only.

    A server of another system is left to the caller.
    """
    end, known = current_lsn(connection), known_end(tables)
    place = newest_place(tables.have.values())
    if options.resync_all:
        # Sequences here only grow, so changes before the last known position would be dropped.
        if known - end <= MOST_EXTENDED:
            extend_log(connection, known)
            return
        helps = ("choose another --origin and --slot: all tables are copied again",)
        raise SourceFailed(_restored(tables, end, known), helps=helps)
    if place is None:
        if end < known:
            raise SourceFailed(f"{_restored(tables, end, known)}; {COPIES_ALL}")
        return
    if place.system_identifier != server.system_identifier:
        return
    _check_halted(options, tables, place)
    if (wrong := _branch_reason(tables, place, server.history)) is not None:
        raise SourceFailed(f"{wrong}; {COPIES_ALL}")
    doubted = max(state.doubted for state in tables.have.values() if state.place == place)
    if end < known:
        # Its log will soon be longer, and then looks like the one that was read.
        raise doubt(tables, place, end, known)
    if doubted and slot is not None and slot.confirmed_lsn <= doubted:
        raise doubt(tables, place, doubted, known)


def _check_halted(options: Options, tables: Tables, place: SlotPlace) -> None:
    for target, state in tables.states().items():
        if state.place == place and state.phase == "following" and state.halted:
            if not options.resume:
                raise SourceFailed(state.halted, helps=CRASH_HELPS)
            tables.put(target, msgspec.structs.replace(state, halted=""))


def halt(tables: Tables, place: SlotPlace, reason: str) -> SourceFailed:
    """Stop reading for good, also at later starts; return the error to raise."""
    for target, state in tables.states().items():
        if state.place == place and state.phase == "following":
            with suppress(NotFound):
                tables.put(target, msgspec.structs.replace(state, halted=reason))
    return SourceFailed(reason, helps=CRASH_HELPS)


def known_end(tables: Tables) -> int:
    """The last position of the source's log that anything here is from."""
    known = [state.from_lsn for state in tables.states().values()]
    known += [each.memory_sequence or 0 for each in tables.client.origins(tables.origin)]
    return max(known, default=0)


def _restored(tables: Tables, end: int, known: int) -> str:
    has = f"ends at {lsn_text(end)}" if end < known else "has other transactions"
    return (
        f"the source's log {has}, but origin {tables.origin!r} has read up to"
        f" {lsn_text(known)}: the source was restored from a backup, or is another one"
    )


def doubt(tables: Tables, place: SlotPlace, end: int, known: int) -> SourceFailed:
    """Refuse also later starts, until the slot is confirmed beyond what this source has.

    Args:
        end: of the source's log.
        known: the position up to which it was read.

    Returns:
        The error to raise.
    """
    for target, state in tables.states().items():
        if state.place == place and state.phase == "following" and state.doubted < end:
            with suppress(NotFound):
                tables.put(target, msgspec.structs.replace(state, doubted=end))
    return SourceFailed(f"{_restored(tables, end, known)}; {COPIES_ALL}")


def sequences_upto(tables: Tables, target: str) -> int:
    """The position of the newest change that was sent to a table here; 0 if none was."""
    found = [0]
    for name in (tables.origin, catch_up_name(tables.origin, target)):
        with suppress(NotFound):
            for each in tables.client.origins(name, (tables.namespace, target)):
                found += [each.table_newest or 0, each.table_partly or 0]
    return max(found)


def _branch_reason(tables: Tables, place: SlotPlace, history: History) -> str | None:
    """Why tables have changes that are not in the source's log; None if all are in it."""
    found = []
    for target, state in sorted(tables.have.items()):
        if state.place != place or state.phase != "following" or not state.history:
            continue
        shared = shared_upto(state.history, history)
        if shared is not None:
            has = max(state.from_lsn, sequences_upto(tables, target))
            if has > shared:
                found.append((target, state.history[-1][0], has, shared))
    if not found:
        return None
    (target, timeline, has, shared), more = found[0], len(found) - 1
    others = f" and {more} other tables have" if more else " has"
    return (
        f"the source's log is on timeline {history[-1][0]}, which continues it from"
        f" {lsn_text(shared)}, but table {target!r}{others} changes of timeline {timeline} up to"
        f" {lsn_text(has)}: a standby that lacked them was promoted, or the server was restored"
    )


def note_history(tables: Tables, place: SlotPlace, history: History) -> None:
    """Store the history in all states, before anything is sent that was read on it."""
    newest = kept(history)
    for target, state in tables.states().items():
        if state.place == place and state.phase == "following" and state.history != newest:
            shared = shared_upto(state.history, history) if state.history else None
            upto = state.upto if shared is None else min(state.upto, shared)
            tables.put(target, msgspec.structs.replace(state, history=newest, upto=upto))
