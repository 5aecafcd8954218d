"""The replicator: follows the source across restarts of both sides, each change applied once.

    start ─▶ look, plan ─▶ copies that are due, beside the stream ─▶ something changed ─┐
               ▲                                                                        │
               ├────────────────────────────────────────────────────────────────────────┘
               └──── a connection is lost, or the daemon has restarted

Unsupported tables are skipped and reported; the others continue. The result of a look is applied
between transactions, after all changes read before the look were sent.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

from ingester.client import Client, Restarted, TimedOut, Unavailable, UnknownOutcome, Unreachable
from ingester.postgres.connection import connect
from ingester.postgres.copying import Copier
from ingester.postgres.following import OtherLog, Session
from ingester.postgres.history import doubt, halt
from ingester.postgres.options import Options
from ingester.postgres.positions import IdleSlot, Positions, SlotHold, catch_up_name
from ingester.postgres.sending import NewSession
from ingester.postgres.server_errors import SourceFailed
from ingester.postgres.slot import (
    FoundSlot,
    SlotStream,
    current_lsn,
    end_sender,
    find_slot,
    send_heartbeat,
    server_run,
)
from ingester.postgres.starting import Started, order_resyncs, start
from ingester.postgres.states import ReplicaState
from ingester.postgres.tables import Tables
from ingester.postgres.timelines import lsn_text
from ingester.postgres.watching import SourceWatch

TRANSIENT = (Unreachable, TimedOut, Unavailable, UnknownOutcome)
LONGEST_PAUSE_S = 30.0
MOST_CRASHES = 3
COMMIT_BYTES = 64 << 10
"""A session begins so far before the end of the last transaction, to see its commit again."""
TOGETHER_S = 60.0
"""During a series of copies, finished ones are followed at least this often."""


@dataclass
class ReplicatorProgress:
    """Counts since the start, and positions in the source's log."""

    changes: int = 0
    transactions: int = 0
    copied: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    """By table."""
    sent: int | None = None
    durable: int | None = None


@dataclass
class Crashes:
    """Counts the crashes of the server since a session has last made progress.

    A session has made progress if it has read further than all sessions before, unless a table
    was copied when it ended whose copy was running at the previous crash, too. A session that
    ends without either changes nothing: a connection may be accepted between a crash and its
    discovery by the server, and is lost right away.
    """

    count: int = 0
    _run: tuple[Any, ...] | None = None
    _upto: int = -1
    _copying: str | None = None

    def begin(self, run: tuple[Any, ...], read_upto: int, copying: str | None) -> bool:
        """Count the previous session; return whether another one may begin.

        Args:
            run: as by ``server_run``.
            read_upto: the position that the previous session has reached.
            copying: the table whose copy was running when it ended.
        """
        crashed = self._run not in (None, run)
        copies_again = copying is not None and copying == self._copying
        progressed = read_upto > self._upto and not copies_again
        if progressed:
            self.count = 0
        if crashed:
            self.count += 1
        if crashed or progressed:
            self._copying = copying if crashed else None
        self._upto = max(self._upto, read_upto)
        self._run = run
        return self.count < MOST_CRASHES


@dataclass
class Running:
    """The state that several sessions share, until the slot or the server is replaced."""

    started: Started
    copier: Copier
    hold: SlotHold
    watch: SourceWatch

    @property
    def tables(self) -> Tables:
        """The tables of the replication."""
        return self.started.tables


@dataclass
class CurrentSession:
    """The state of one session."""

    session: Session
    stream: SlotStream
    idle_slot: IdleSlot
    began_at: float = field(default_factory=time.monotonic)
    copied: int = 0
    """Tables that were copied and are not followed yet."""


class Replicator:
    """Replicates until stopped.

    Args:
        say: called with a line for each event.
        stopped: whether to end; polled several times a second.
        report: called regularly, to report progress.
    """

    def __init__(
        self,
        options: Options,
        client: Client,
        *,
        say: Callable[[str], None],
        stopped: Callable[[], bool],
        report: Callable[[Replicator], None] = lambda replicator: None,
    ) -> None:
        self.options = options
        self.progress = ReplicatorProgress()
        self.retries = 0
        self.reason = ""
        self.running: Running | None = None
        self.positions: Positions | None = None
        self.server_lsn = 0
        self._client = client
        self._say = say
        self._stopped = stopped
        self._report = report
        self._random = Random()
        self._crashes = Crashes()
        self._failed_copying = False
        self._rereads = False
        self._connection: Any = None
        self._current: CurrentSession | None = None
        self._known: dict[str, int] = {}
        """The positions of tables that were followed until the previous session ended."""

    def run(self) -> None:
        """Replicate until stopped.

        Raises:
            SourceFailed: the source must be changed first.
            BadState, ClientError: a retry would fail again.
        """
        import psycopg2

        try:
            while not self._stopped():
                try:
                    self._once()
                except NewSession:
                    self.retries = 0
                except Restarted as exc:
                    self._say(f"{exc}: resuming from its position")
                except (*TRANSIENT, psycopg2.OperationalError) as exc:
                    self._failed(exc)
                except SourceFailed as exc:
                    if exc.permanent:
                        raise
                    self._failed(exc)
        finally:
            self._end()

    def server_lsn_read(self) -> int:
        """The position up to which the source's log was read."""
        assert self.positions is not None
        current = self._current
        if current is not None and current.session.idle:
            return max(self.positions.read_upto, current.stream.server_lsn)
        return self.positions.read_upto

    def _once(self) -> None:
        """Start if necessary, and run one session."""
        if self.running is None:
            self.running = self._start()
        if self._connection is None:
            self._connection = connect(self.options.dsn)
        slot = find_slot(self._connection, self.options.slot)
        if slot is None or self.running.started.is_misplaced(self._connection, slot):
            self._connection.close()
            self._connection = None
            self.running = None  # The next start explains what is wrong.
            raise NewSession
        self._bound_crashes(self.running)
        self._run_session(self.running, slot)

    def _bound_crashes(self, running: Running) -> None:
        """Stop for good if session after session ends in a crash: the source pays for each."""
        upto = -1 if self.positions is None else self.positions.read_upto
        copying = running.copier.at if self._failed_copying else None
        if not self._crashes.begin(server_run(self._connection), upto, copying):
            what = f"at {lsn_text(upto)}" if copying is None else f"while {copying} was copied"
            raise halt(
                running.tables,
                running.started.place,
                f"the server crashed {MOST_CRASHES} times in succession while it was read, {what}",
            )

    def _start(self) -> Running:
        options = self.options
        started = start(options, self._client, self._stopped)
        self._connection = started.connection
        tables = started.tables
        for name in order_resyncs(tables, options):
            self._say(f"--resync {name}: no table here has this name")
        return Running(
            started,
            Copier(options, tables, self._client, self._say, self._stopped),
            SlotHold(tables),
            SourceWatch(options, tables, started.place, self._say),
        )

    def _failed(self, exc: BaseException) -> None:
        self.retries += 1
        self._failed_copying = self.running is not None and self.running.copier.busy
        self.reason = " ".join(str(exc).split())
        self._say(f"retrying: {self.reason}")
        if self._connection is not None:
            with suppress(Exception):
                self._connection.close()
            self._connection = None
        seconds = min(LONGEST_PAUSE_S, 0.1 * 2 ** min(self.retries, 9))
        until = time.monotonic() + seconds * self._random.uniform(0.5, 1.0)
        while not self._stopped() and (left := until - time.monotonic()) > 0:
            self._report(self)
            time.sleep(min(0.1, left))

    def _end(self) -> None:
        if self.running is not None:
            self.running.copier.join(10.0)
            self.running.started.undo()
        if self._connection is not None:
            self._connection.close()

    # A session

    def _run_session(self, running: Running, slot: FoundSlot) -> None:
        if not running.copier.busy:
            running.hold.end()
        self.progress.copied += running.copier.take_done()
        known = self._begin_positions(running, slot)
        assert self.positions is not None
        send_heartbeat(self._connection)  # The stream's first message: see ``slot``.
        options, positions = self.options, self.positions
        stream = SlotStream(options.dsn, options.slot, options.publication)
        try:
            self._check_history(running, stream)
            session = Session(running.tables, stream, positions, self, self._say)
            idle_slot = IdleSlot(running.tables, positions, options.heartbeat_s)
            self._current = CurrentSession(session, stream, idle_slot)
            running.watch.look(self._connection, session, self.server_lsn_read)
            self._follow_tables(running.tables, session, known)
            # The server skips older changes quickly.
            begun = stream.begin(self._begin_at(session, slot, positions.ahead))
            # It may have been dropped and created again since it was checked; now it is held.
            held = find_slot(self._connection, options.slot)
            if held is None or held.confirmed_lsn != slot.confirmed_lsn:
                raise NewSession  # which checks it
            positions.read_upto = max(positions.read_upto, begun)
            self.reason = ""
            self._run_until_new_session(session, positions)
        finally:
            self._note_progress()
            self._current = None
            pid = stream.backend_pid
            stream.close()
            with suppress(Exception):
                end_sender(self._connection, pid, options.slot)

    def _check_history(self, running: Running, stream: SlotStream) -> None:
        """Start again if the stream's server is not the one that the start has checked."""
        import psycopg2

        history = stream.history()
        if history != running.started.history:
            self.running, self._crashes = None, Crashes()  # Another server has not crashed.
            raise psycopg2.OperationalError(f"the server's log is now on timeline {history[-1][0]}")

    def _begin_at(self, session: Session, slot: FoundSlot, ahead: int) -> int:
        """The position to begin at: before everything that a table lacks.

        The last transaction that was read is repeated, unless the slot is confirmed beyond it. If
        it is not in the stream, this is another log.
        """
        lacks = min(session.targets().values(), default=0)
        # The slot may be confirmed up to the byte before its end: see ``slot``.
        if not lacks or slot.confirmed_lsn >= ahead - 1:
            return lacks
        session.expect(ahead)
        return 0 if self._rereads else max(0, min(lacks, ahead - COMMIT_BYTES))

    def _run_until_new_session(self, session: Session, positions: Positions) -> None:
        assert self.running is not None
        try:
            session.run(self._stopped)
        except OtherLog as exc:
            if not self._rereads:
                self._rereads = True  # Perhaps its commit is very long.
                raise NewSession from exc
            self._rereads = False
            started = self.running.started
            end = current_lsn(self._connection)
            raise doubt(started.tables, started.place, end, positions.ahead) from exc
        except NewSession:
            if session.idle:
                upto = positions.read_upto
                self._known = {name: max(has, upto) for name, has in session.targets().items()}
            raise

    def _begin_positions(self, running: Running, slot: FoundSlot) -> dict[str, int]:
        """Ask for all positions; return those of tables that the previous session followed."""
        tables, before = running.tables, self.positions
        known, self._known = self._known, {}
        names = tables.namespace, tables.origin
        positions = Positions.begin(self._client, *names, slot, self.options.ack)
        if before is not None and before.of_one_process(positions):
            positions.catch_up.update(before.catch_up)
        else:
            known = {}  # The daemon has restarted and may have lost rows.
        # A state's ``upto`` may be lost with the daemon's disk; a copy is in object storage.
        copied = [state.from_lsn for state in tables.states().values()]
        positions.bound = max(slot.confirmed_lsn, *copied, 0)
        positions.confirmed = slot.confirmed_lsn
        self.positions = positions
        return known

    def _follow_tables(self, tables: Tables, session: Session, known: dict[str, int]) -> None:
        for target, state in tables.following().items():
            has = max(known[target], state.from_lsn) if target in known else None
            has = self._position_of(tables, target, state) if has is None else has
            if has is not None:
                session.follow(target, state, has)

    def _position_of(self, tables: Tables, target: str, state: ReplicaState) -> int | None:
        """The table has all transactions that end at or before this position.

        None if it must be copied again: its partitions have different positions, or unknown ones
        after the loss of the daemon's disk. Changes that one partition lacks would be sent under
        another origin, over newer rows of the others.
        """
        assert self.positions is not None
        found = [state.from_lsn]
        for name in (tables.origin, catch_up_name(tables.origin, target)):
            for each in self._client.origins(name, (tables.namespace, target)):
                found.append(each.table_newest or 0)
                if (each.table_partly or 0) > found[-1]:
                    reason = "the positions of its partitions were lost with the daemon's disk"
                    if tables.order(target, reason, state.facts.oid):
                        self._say(f"table {target} is copied: {reason}")
                    return None
                if name != tables.origin and each.memory_sequence != each.files_sequence:
                    # Sent by the previous session: the slot must wait for it.
                    self.positions.catching_up_of(target)
        return max(found)

    # Turns

    def hold(self) -> int | None:
        """The highest position that may be confirmed while tables wait for a copy, or None."""
        assert self.positions is not None and self.running is not None
        return self.running.hold.at(self.positions.confirmed)

    def turn(self) -> None:
        """Do what is due between transactions."""
        running, current, positions = self.running, self._current, self.positions
        assert running is not None and current is not None and positions is not None
        self._note_progress()
        if current.session.is_verified:
            self._rereads = False
        # Invariant: `busy` is read before finished copies are taken. A round that ends in between
        # counts as busy in this turn, so the slot is held until a new session reads for its tables.
        busy = running.copier.busy
        done = running.copier.take_done()
        current.copied += done
        self.progress.copied += done
        if current.copied and self._should_follow(running, current, positions, busy=busy):
            current.session.send()
            raise NewSession
        if running.watch.is_due:
            current.session.send()
            running.watch.look(self._connection, current.session, self.server_lsn_read)
        if not busy:
            self._begin_copies(running, current, positions)
        if current.session.idle:
            current.idle_slot.keep(self._connection, running.watch.in_doubt)
        self._report(self)

    def _should_follow(
        self, running: Running, current: CurrentSession, positions: Positions, *, busy: bool
    ) -> bool:
        """Whether to follow copied tables now: no copy is due, or they have waited long enough."""
        if not (busy or running.tables.due()):
            return True
        long = time.monotonic() - current.began_at > TOGETHER_S
        return long and not positions.catching_up

    def _begin_copies(
        self, running: Running, current: CurrentSession, positions: Positions
    ) -> None:
        """Begin a round if a copy is due. No round is running."""
        running.hold.settle()
        if running.tables.due():
            running.hold.begin(positions.confirmed)
            running.copier.begin(running.started.place, running.started.history)
        elif not current.copied:
            running.hold.end()

    def _note_progress(self) -> None:
        positions, progress = self.positions, self.progress
        assert positions is not None
        progress.changes += positions.changes
        progress.transactions += positions.transactions
        positions.changes = positions.transactions = 0
        progress.rows.update(positions.rows)
        positions.rows.clear()
        progress.sent = positions.sent
        progress.durable = positions.main.durable if positions.main.durable >= 0 else None
        lsns = [self.server_lsn, positions.read_upto]
        if (current := self._current) is not None:
            lsns.append(current.stream.server_lsn)
            if self.running is not None:
                self.running.watch.note_truncated(current.session.truncated)
        if self.running is not None and self.running.watch.looked is not None:
            lsns.append(self.running.watch.looked.lsn)
        self.server_lsn = max(lsns)
