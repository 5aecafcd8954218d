"""The replicator: follows the source across restarts of both sides, each change applied once.

    start ─▶ look, plan ─▶ copies that are due, beside the stream ─▶ something changed ─┐
               ▲                                                                        │
               ├────────────────────────────────────────────────────────────────────────┘
               └──── a connection is lost, or the daemon has restarted

Unsupported tables are skipped and reported; the others continue. The result of a look is applied
between transactions, after everything read before it was sent.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec

from ingester.client import Client, Restarted, TimedOut, Unavailable, UnknownOutcome, Unreachable
from ingester.postgres.connection import connect
from ingester.postgres.copying import Copier
from ingester.postgres.following import NewSession, Session
from ingester.postgres.options import Options
from ingester.postgres.planning import SourceLook, TableStep, WantedTable, look, plan, truncated_by
from ingester.postgres.positions import IdleSlot, Positions, SlotHold, catch_up_name
from ingester.postgres.server_errors import SourceFailed
from ingester.postgres.slot import FoundSlot, SlotStream, end_sender, find_slot, send_heartbeat
from ingester.postgres.starting import Started, start
from ingester.postgres.states import ReplicaState
from ingester.postgres.tables import now

PASSING = (Unreachable, TimedOut, Unavailable, UnknownOutcome)
LONGEST_PAUSE_S = 30.0
TOGETHER_S = 60.0
"""Where copies follow on copies, tables are followed at least so often, those that are done."""


@dataclass
class ReplicatorProgress:
    """The progress since the start; positions are of the source's log."""

    changes: int = 0
    transactions: int = 0
    copied: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    """By table."""
    sent: int | None = None
    durable: int | None = None


class Replicator:
    """Runs until it is told to stop.

    Args:
        say: told what happens, in a line.
        stopped: asked whether to end, several times a second.
        told: called once in a while, for a report.
    """

    def __init__(
        self,
        options: Options,
        client: Client,
        *,
        say: Callable[[str], None],
        stopped: Callable[[], bool],
        told: Callable[[Replicator], None] = lambda replicator: None,
    ) -> None:
        self.options = options
        self.progress = ReplicatorProgress()
        self.retries = 0
        self.reason = ""
        self.looked: SourceLook | None = None
        self.positions: Positions | None = None
        self.server_lsn = 0
        self._client = client
        self._say = say
        self._stopped = stopped
        self._told = told
        self._random = Random()
        self._connection: Any = None
        self._session: Session | None = None
        self._stream: SlotStream | None = None
        self._keeper: IdleSlot | None = None
        self._looked_at = self._session_at = 0.0
        self._known: dict[str, int] = {}
        """What each table has that the session before followed to its end."""
        self._truncated: dict[int, set[int]] = {}
        self._doubts: dict[str, int] = {}
        self._holding: SlotHold | None = None
        self._copied = 0
        self._said_once: set[str] = set()
        self.started: Started | None = None
        self.copier: Copier | None = None

    def run(self) -> None:
        """Replicate until stopped.

        Raises:
            SourceFailed: the source has to be changed first.
            BadState, ClientError: the daemon has, or refuses, what no retry helps.
        """
        import psycopg2

        try:
            while not self._stopped():
                try:
                    self._once()
                except NewSession:
                    self.retries = 0
                except Restarted as exc:
                    self._say(f"{exc}: going on from where that stands")
                except (*PASSING, psycopg2.OperationalError) as exc:
                    self._failed(exc)
                except SourceFailed as exc:
                    if exc.permanent:
                        raise
                    self._failed(exc)
        finally:
            self._end()

    def _once(self) -> None:
        if self.started is None:
            started = start(self.options, self._client, self._stopped)
            self.started, self._connection = started, started.connection
            self.copier = Copier(
                self.options, started.tables, self._client, self._say, self._stopped
            )
            self._holding = SlotHold(started.tables)
            self._order_resyncs(started)
        if self._connection is None:
            self._connection = connect(self.options.dsn)
        try:
            self._run_session()
        finally:
            stream, self._session, self._stream = self._stream, None, None
            if stream is not None:
                pid = stream.backend_pid
                stream.close()
                with suppress(Exception):
                    end_sender(self._connection, pid, self.options.slot)

    def _failed(self, exc: BaseException) -> None:
        self.retries += 1
        self.reason = " ".join(str(exc).split())
        self._say(f"trying again: {self.reason}")
        if self._connection is not None:
            with suppress(Exception):
                self._connection.close()
            self._connection = None
            if self.started is None:
                return
        seconds = min(LONGEST_PAUSE_S, 0.1 * 2 ** min(self.retries, 9))
        until = time.monotonic() + seconds * self._random.uniform(0.5, 1.0)
        while not self._stopped() and (left := until - time.monotonic()) > 0:
            self._told(self)
            time.sleep(min(0.1, left))

    def _end(self) -> None:
        if self.copier is not None:
            self.copier.join(10.0)
        if self.started is not None:
            self.started.take_back()
        if self._connection is not None:
            self._connection.close()

    def _order_resyncs(self, started: Started) -> None:
        tables, options = started.tables, self.options
        unknown = set(options.resync)
        for target, state in list(tables.have.items()):
            names = {target, state.facts.full_name, state.facts.name}
            if options.resync_all or names & options.resync:
                tables.order(target, "somebody asks for it", state.facts.oid)
            unknown -= names
        for name in sorted(unknown):
            self._say_once(f"--resync {name}: no table here has this name")

    def _say_once(self, text: str) -> None:
        if text not in self._said_once:
            self._said_once.add(text)
            self._say(text)

    # A session

    def _run_session(self) -> None:
        assert self.started is not None and self.copier is not None and self._holding is not None
        tables, options = self.started.tables, self.options
        if not self.copier.busy:
            self._holding.end()
        self._copied = 0
        self.progress.copied += self.copier.take_done()
        slot = find_slot(self._connection, options.slot)
        if slot is None or self.started.is_misplaced(self._connection, slot):
            self._connection.close()
            self._connection = None
            self.started = None  # the next start says what that means
            raise NewSession
        known = self._begin_positions(slot)
        assert self.positions is not None
        self._keeper = IdleSlot(tables, self.positions, options.heartbeat_s)
        send_heartbeat(self._connection)  # The first message of the stream: see ``slot``.
        self._stream = SlotStream(options.dsn, options.slot, options.publication)
        self._session = session = Session(tables, self._stream, self.positions, self, self._say)
        self._session_at = time.monotonic()
        self._look(session)
        for target, state in tables.following().items():
            has = max(known[target], state.from_lsn) if target in known else None
            has = self._has(target, state) if has is None else has
            if has is not None:
                session.follow(target, state, has)
        # What is before that was read, and a server is quick to read its log for others.
        begun = self._stream.begin(min(session.targets().values(), default=0))
        self.positions.read_upto = max(self.positions.read_upto, begun)
        self.reason = ""
        try:
            session.run(self._stopped)
        except NewSession:
            if session.idle:
                upto = self.positions.read_upto
                self._known = {name: max(has, upto) for name, has in session.targets().items()}
            raise
        finally:
            self._note_progress()

    def _begin_positions(self, slot: FoundSlot) -> dict[str, int]:
        """Find out how far all is; return what tables have that the session before followed."""
        assert self.started is not None
        tables, before = self.started.tables, self.positions
        known, self._known = self._known, {}
        positions = Positions.begin(self._client, tables.namespace, tables.origin, slot)
        if before is not None and before.of_one_process(positions):
            positions.catch_up.update(before.catch_up)
        else:
            known = {}  # The daemon has restarted: it may have lost what it had.
        # An ``upto`` of a state may be lost with the daemon's disk; a copy is in object storage.
        copied = [state.from_lsn for state in tables.states().values()]
        positions.bound = max(slot.confirmed_lsn, *copied, 0)
        positions.confirmed = slot.confirmed_lsn
        self.positions = positions
        return known

    def _has(self, target: str, state: ReplicaState) -> int | None:
        """What a table has: all transactions that end at or before it.

        None where it is copied anew: its partitions have come to different places, or nobody knows,
        as after the loss of the daemon's disk. What one of them lacks would be sent by another
        origin, over newer rows of the others.
        """
        assert self.started is not None and self.positions is not None
        tables = self.started.tables
        found = [state.from_lsn]
        for name in (tables.origin, catch_up_name(tables.origin, target)):
            for each in self._client.origins(name, (tables.namespace, target)):
                found.append(each.table_newest or 0)
                if (each.table_partly or 0) > found[-1]:
                    reason = "how far each of its partitions is was lost with the daemon's disk"
                    if tables.order(target, reason, state.facts.oid):
                        self._say(f"table {target} is copied: {reason}")
                    return None
                if name != tables.origin and each.memory_sequence != each.durable_sequence:
                    # The session before has sent it, and the slot waits for that.
                    self.positions.catching_up_of(target)
        return max(found)

    # Turns

    def hold(self) -> int | None:
        """The position that the slot may not pass, for tables that are not followed for now."""
        assert self.positions is not None and self._holding is not None
        return self._holding.at(self.positions.confirmed)

    def turn(self) -> None:
        """Do what is due between transactions."""
        assert self.copier is not None and self.started is not None
        session, positions = self._session, self.positions
        assert session is not None and positions is not None and self._keeper is not None
        self._note_progress()
        # Invariant: asked before what was copied is taken. A round that ends later than this is
        # busy for this turn: the slot is held until the stream has begun anew for its tables.
        busy = self.copier.busy
        self._copied += (done := self.copier.take_done())
        self.progress.copied += done
        if self._copied and self._is_round_over(busy):
            self._copied = 0
            session.send()
            raise NewSession
        if time.monotonic() - self._looked_at >= self._look_every_s():
            session.send()
            self._look(session)
        if not busy:
            self._begin_copies(positions)
        if session.idle:
            self._keeper.keep(self._connection, bool(self._doubts))
        self._told(self)

    def _is_round_over(self, busy: bool) -> bool:
        """Whether what was copied is followed now: no copy is next, or it has waited for long."""
        assert self.started is not None and self.positions is not None
        if not (busy or self.started.tables.due()):
            return True
        long = time.monotonic() - self._session_at > TOGETHER_S
        return long and not self.positions.catching_up

    def _begin_copies(self, positions: Positions) -> None:
        """Begin a round if a copy is due; none is under way, and all that were are followed."""
        assert self.started is not None and self.copier is not None and self._holding is not None
        self._holding.settle()
        if self.started.tables.due():
            self._holding.begin(positions.confirmed)
            self.copier.begin(self.started.place)
        elif not self._copied:
            self._holding.end()

    def _look_every_s(self) -> float:
        return 1.0 if self._doubts else self.options.look_every_s

    def _note_progress(self) -> None:
        positions, progress = self.positions, self.progress
        if positions is None:
            return
        progress.changes += positions.changes
        progress.transactions += positions.transactions
        positions.changes = positions.transactions = 0
        progress.rows.update(positions.rows)
        positions.rows.clear()
        progress.sent = positions.sent
        progress.durable = positions.main.durable if positions.main.durable >= 0 else None
        if self._session is not None:
            for oid, xids in self._session.truncated.items():
                self._truncated.setdefault(oid, set()).update(xids)
        if self._stream is not None:
            self.server_lsn = max(self.server_lsn, self._stream.server_lsn, positions.read_upto)
        if self.looked is not None:
            self.server_lsn = max(self.server_lsn, self.looked.lsn)

    def _look(self, session: Session) -> None:
        assert self.started is not None
        tables, place = self.started.tables, self.started.place
        self._looked_at = time.monotonic()
        self.looked = found = look(self._connection, self.options)
        for option in found.unused:
            self._say_once(f"{option}: nothing at the source has this name")
        wanted = {each.target: each for each in reversed(found.tables)}
        for target in tables.requests():
            if target in wanted:
                tables.order(target, "somebody asks for it", wanted[target].facts.oid)
        for target in list(tables.orders):
            if target not in wanted:
                tables.orders.pop(target, None)
        for step in plan(place, tables.states(), tuple(wanted.values())).values():
            self._apply(session, step, wanted.get(step.target), found.lsn)
        for target in list(tables.orders):
            session.leave(target)

    def _apply(
        self, session: Session, step: TableStep, table: WantedTable | None, lsn: int
    ) -> None:
        assert self.started is not None
        tables, target = self.started.tables, step.target
        if step.action != "ask" or target in tables.orders:
            self._doubts.pop(target, None)
        if step.action == "set_aside":
            tables.orders.pop(target, None)
            session.leave(target)
            if target not in tables.aside or tables.aside[target].reason != step.reason:
                self._say(f"table {target} is set aside: {step.reason}")
            tables.set_aside(target, step.reason, step.helps)
        elif step.action == "leave":
            session.leave(target)
            self._leave(target, step.reason)
        elif table is None:
            return
        elif step.action == "copy":
            session.leave(target)
            if tables.order(target, step.reason, table.facts.oid):
                self._say(f"table {target} is copied: {step.reason}")
        elif step.action == "ask" and target not in tables.orders:
            self._ask(session, step, table, lsn)
        elif step.action == "widen" and target not in tables.orders:
            state = tables.have[target]
            new = msgspec.structs.replace(state, facts=table.facts, columns=table.columns)
            tables.put(target, new)
            session.reshape(target, new)

    def _ask(self, session: Session, step: TableStep, table: WantedTable, lsn: int) -> None:
        """Decide, once the stream is where the look was, whether a TRUNCATE explains new files."""
        assert self.started is not None and self.positions is not None
        tables, target = self.started.tables, step.target
        self._doubts.setdefault(target, lsn)
        state = tables.have[target]
        if self.server_lsn_read() < self._doubts[target]:
            return
        self._note_progress()
        self._doubts.pop(target)
        known = self._truncated.pop(table.facts.oid, set())
        if truncated_by(state.facts, table.facts, known):
            new = msgspec.structs.replace(state, facts=table.facts, columns=table.columns)
            tables.put(target, new)
            session.reshape(target, new)
            return
        session.leave(target)
        if tables.order(target, step.reason, table.facts.oid):
            self._say(f"table {target} is copied: {step.reason}")

    def server_lsn_read(self) -> int:
        """The position up to which all of the source's log was read."""
        assert self.positions is not None
        if self._session is not None and self._session.idle and self._stream is not None:
            return max(self.positions.read_upto, self._stream.server_lsn)
        return self.positions.read_upto

    def _leave(self, target: str, reason: str) -> None:
        assert self.started is not None
        tables = self.started.tables
        state = tables.have[target]
        tables.orders.pop(target, None)
        tables.aside.pop(target, None)
        if state.phase == "left":
            return
        self._say(f"table {target} is not followed any more: {reason}")
        left = msgspec.structs.replace(state, phase="left", reason=reason, since=now(), helps=())
        if self.options.on_removed == "empty":
            self.started.tables.empty(target, left)
        else:
            tables.put(target, left)
