"""The start, and requests for new copies.

    server, states, slot ─▶ checked ─▶ publication ─▶ slot ─▶ SlotPlace
                               └ refused: nothing created    └ refused: publication restored
    --resync ─▶ a replicator is running? ─▶ yes: a request at the daemon, which it reads
                                         └▶ no: ordered at this start

Checks never depend on what an earlier, refused start has created: an existing slot alone lets no
start through. What a start has created is removed unless a table is followed by it
(``tests/postgres/test_replicating.py``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from ingester.client import Client
from ingester.postgres.catalog import read_server, read_tables
from ingester.postgres.conditions import before_start
from ingester.postgres.connection import connect
from ingester.postgres.facts import ServerFacts
from ingester.postgres.history import COPIES_ALL, ServerLog, check_log, known_end, note_history
from ingester.postgres.options import Options, choose, split_name
from ingester.postgres.planning import publish
from ingester.postgres.positions import catch_up_name
from ingester.postgres.publication import PublicationChange
from ingester.postgres.server_errors import SourceFailed
from ingester.postgres.slot import FoundSlot, current_lsn, drop_slot, find_slot, make_slot
from ingester.postgres.states import History, ReplicaState, SlotPlace
from ingester.postgres.tables import Tables, newest_place
from ingester.postgres.timelines import lsn_text, read_history


@dataclass
class Started:
    """The objects that a start has found or created."""

    options: Options
    connection: Any
    server: ServerFacts
    history: History
    tables: Tables
    place: SlotPlace
    made_slot: bool
    made: PublicationChange | None

    def undo(self) -> None:
        """Remove what the start has created, unless a table is followed by it."""
        if any(state.place == self.place for state in self.tables.states().values()):
            return
        with suppress(Exception):
            if self.made_slot:
                connection = connect(self.options.dsn)
                try:
                    drop_slot(connection, self.options.slot)
                finally:
                    connection.close()
            if self.made is not None:
                self.made.undo()

    def is_misplaced(self, connection: Any, slot: FoundSlot) -> bool:
        """Whether a new start would be refused: the slot or the server is another one."""
        tables, server = self.tables, self.server
        if current_lsn(connection) < known_end(tables):
            return True
        newest = newest_place(tables.states().values())
        if newest != self.place:
            return slot.lost  # No table is followed by this slot yet: all will be copied.
        at = SlotPlace(server.system_identifier, server.database, self.options.slot, 0)
        return _gap_reason(at, newest, tables, slot) is not None


def start(options: Options, client: Client, stopped: Callable[[], bool]) -> Started:
    """Check everything, then create what is missing.

    Raises:
        SourceFailed: something must be changed first; nothing of this start is left.
        BadState: a table's state cannot be read.
    """
    connection = connect(options.dsn)
    try:
        return _start(options, client, connection, stopped)
    except BaseException:
        connection.close()
        raise


def _start(
    options: Options, client: Client, connection: Any, stopped: Callable[[], bool]
) -> Started:
    server = read_server(connection)
    check_server(server, options)
    tables = Tables(client, options.namespace, options.origin or default_origin(options, server))
    tables.load()
    check_tables(connection, options, tables)
    with closing(connect(options.dsn, replication=True)) as beside:
        history = read_history(beside)
    slot = find_slot(connection, options.slot)
    check_log(connection, options, tables, ServerLog(server.system_identifier, history), slot)
    place = _place(options, server, tables, slot)
    made = publish(connection, options)
    made_slot = False
    try:
        # The old slot may be unusable; copies begin at a new slot.
        again = options.resync_all and any(s.place.is_of(place) for s in tables.have.values())
        if slot is not None and (slot.lost or again):
            drop_slot(connection, options.slot)
            slot = None
        if slot is None:
            lsn = interruptible(connection, stopped, lambda: make_slot(connection, options.slot))
            made_slot = True
            place = SlotPlace(server.system_identifier, server.database, options.slot, lsn)
        note_history(tables, place, history)
    except BaseException:
        with suppress(Exception):
            made.undo()
        raise
    return Started(options, connection, server, history, tables, place, made_slot, made)


def default_origin(options: Options, server: ServerFacts) -> str:
    """An origin unique to the system, database and slot."""
    return f"postgres-{server.system_identifier}-{server.database}-{options.slot}"[:240]


def check_server(server: ServerFacts, options: Options) -> None:
    if found := before_start(server, options.publication, options.slot):
        reasons = "; ".join(each.reason for each in found)
        raise SourceFailed(reasons, helps=tuple(help_ for each in found for help_ in each.helps))


def check_tables(connection: Any, options: Options, tables: Tables) -> None:
    """Refuse names that no table has, and none here had."""
    found = read_tables(connection, options.publication, everything=True)
    had = {(each.facts.schema, each.facts.name) for each in tables.have.values()}
    missing = [name for name in choose(found, options.tables)[1] if split_name(name) not in had]
    if missing:
        raise SourceFailed(
            f"table {', '.join(missing)} does not exist", helps=("correct --tables",)
        )


def _place(
    options: Options, server: ServerFacts, tables: Tables, slot: FoundSlot | None
) -> SlotPlace:
    """The slot that tables are followed by; without one, a place that matches no state."""
    confirmed = -1 if slot is None else slot.confirmed_lsn
    fresh = SlotPlace(server.system_identifier, server.database, options.slot, confirmed)
    elsewhere = tables.elsewhere()
    if elsewhere:
        raise SourceFailed(
            f"origin {tables.origin!r} already replicates into namespace {elsewhere[0]!r}: choose"
            " another --origin and --slot"
        )
    newest = newest_place(tables.have.values())
    if newest is None:
        return fresh
    wrong = _gap_reason(fresh, newest, tables, slot)
    if wrong is None:
        return newest
    if not options.resync_all:
        raise SourceFailed(f"{wrong}; {COPIES_ALL}")
    return fresh


def _gap_reason(
    fresh: SlotPlace, newest: SlotPlace, tables: Tables, slot: FoundSlot | None
) -> str | None:
    """Why changes may be missing between the tables here and the slot; None if none are."""
    if not fresh.is_of(newest):
        return (
            f"origin {tables.origin!r} follows slot {newest.slot!r} of database"
            f" {newest.database!r} in system {newest.system_identifier}, but this is slot"
            f" {fresh.slot!r} of {fresh.database!r} in {fresh.system_identifier}: choose another"
            " --origin"
        )
    if slot is None:
        return f"slot {newest.slot!r} was dropped; the changes since it was last read are lost"
    if slot.lost:
        return f"the server has removed log that slot {newest.slot!r} needs"
    bound = safe_bound(tables, newest)
    if slot.confirmed_lsn > bound:
        return (
            f"slot {newest.slot!r} is at {lsn_text(slot.confirmed_lsn)}, but the changes here end"
            f" at {lsn_text(bound)}: it was created again, or another process reads from it"
        )
    return None


def safe_bound(tables: Tables, place: SlotPlace) -> int:
    """The position up to which the daemon has all changes that the slot has delivered."""
    found = [0]
    states: list[ReplicaState] = [s for s in tables.have.values() if s.place == place]
    found += [max(state.from_lsn, state.upto) for state in states]
    for name in (tables.origin, *(catch_up_name(tables.origin, target) for target in tables.have)):
        # After its restart a daemon may report less as durable until it has looked at all tables.
        for each in tables.client.origins(name):
            found += [each.memory_sequence or 0, each.durable_sequence or 0]
    return max(found)


def interruptible(connection: Any, stopped: Callable[[], bool], call: Callable[[], int]) -> int:
    """The result of a call, which is cancelled when a stop is requested."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.2):
            if stopped():
                connection.cancel()

    watcher = threading.Thread(target=watch, name="postgres-cancel", daemon=True)
    watcher.start()
    try:
        return call()
    finally:
        done.set()
        watcher.join()


def order_resyncs(tables: Tables, options: Options) -> list[str]:
    """Order the copies that the options request; return names that no table here has."""
    unknown = set(options.resync)
    for target, state in list(tables.have.items()):
        names = _names(target, state)
        if options.resync_all or names & options.resync:
            tables.order(target, "a new copy was requested", state.facts.oid)
        unknown -= names
    return sorted(unknown)


def request_resync(options: Options, client: Client) -> str:
    """Request new copies from the replicator that reads from the slot.

    Returns:
        A line that says so; empty if no replicator is running.

    Raises:
        SourceFailed: no such table here.
    """
    connection = connect(options.dsn)
    try:
        slot = find_slot(connection, options.slot)
        if slot is None or slot.active_pid is None:
            return ""
        origin = options.origin or default_origin(options, read_server(connection))
    finally:
        connection.close()
    tables = Tables(client, options.namespace, origin)
    tables.load()
    targets = {
        name: target for target, state in tables.have.items() for name in _names(target, state)
    }
    unknown = sorted(options.resync - targets.keys())
    if unknown:
        raise SourceFailed(f"table {unknown[0]!r} has no copy here that could be made again")
    requested = sorted({targets[name] for name in options.resync})
    tables.request(requested)
    return f"requested a new copy of {', '.join(requested)} from the running replicator"


def _names(target: str, state: ReplicaState) -> set[str]:
    return {target, state.facts.full_name, state.facts.name}
