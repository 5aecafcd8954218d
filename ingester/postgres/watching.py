"""Looks at the source regularly and applies what it finds, between transactions.

    look ─▶ plan ─▶ a TableStep each ─▶ followed, widened, copied, set aside or left

New files of a table's rows may come from a TRUNCATE, which the stream contains, or from a rewrite,
which it does not. That is decided when the stream has reached the position of the look.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ingester.postgres.following import Session
from ingester.postgres.options import Options
from ingester.postgres.planning import SourceLook, TableStep, WantedTable, look, plan, truncated_by
from ingester.postgres.states import SlotPlace
from ingester.postgres.tables import Tables, now

DOUBTFUL_EVERY_S = 1.0
"""The interval of looks while new files are unexplained."""


class SourceWatch:
    """Watches the source for one start of the replicator.

    Args:
        say: called with a line for each event.
    """

    def __init__(
        self, options: Options, tables: Tables, place: SlotPlace, say: Callable[[str], None]
    ) -> None:
        self.looked: SourceLook | None = None
        self._options = options
        self._tables = tables
        self._place = place
        self._say = say
        self._looked_at = 0.0
        self._doubts: dict[str, int] = {}
        """Tables with unexplained new files, and the position of the first look that saw them."""
        self._truncated: dict[int, set[int]] = {}
        self._said: set[str] = set()

    @property
    def in_doubt(self) -> bool:
        """Whether new files are unexplained."""
        return bool(self._doubts)

    @property
    def is_due(self) -> bool:
        """Whether it is time for a look."""
        every_s = DOUBTFUL_EVERY_S if self._doubts else self._options.look_every_s
        return time.monotonic() - self._looked_at >= every_s

    def note_truncated(self, truncated: Mapping[int, set[int]]) -> None:
        """Note transactions that truncated tables, by oid, according to the stream."""
        for oid, transactions in truncated.items():
            self._truncated.setdefault(oid, set()).update(transactions)

    def look(self, connection: Any, session: Session, read_upto: Callable[[], int]) -> None:
        """Look at the source and apply what has changed.

        Args:
            session: everything it has read was sent.
            read_upto: the position up to which the source's log was read.
        """
        tables = self._tables
        self._looked_at = time.monotonic()
        self.looked = found = look(connection, self._options)
        for option in found.unused:
            self._say_once(f"{option}: nothing at the source has this name")
        wanted = {each.target: each for each in reversed(found.tables)}
        for target in tables.requests():
            if target in wanted:
                tables.order(target, "a new copy was requested", wanted[target].facts.oid)
        for target in list(tables.orders):
            if target not in wanted:
                tables.orders.pop(target, None)
        for step in plan(self._place, tables.states(), tuple(wanted.values())).values():
            table = wanted.get(step.target)
            if table is None:
                self._doubts.pop(step.target, None)
                session.leave(step.target)
                self._leave(step.target, step.reason)
            elif step.action == "ask" and step.target not in tables.orders:
                self._explain(session, step, table, read_upto)
            else:
                self._doubts.pop(step.target, None)
                self._apply(session, step, table)
        for target in list(tables.orders):
            session.leave(target)

    def _apply(self, session: Session, step: TableStep, table: WantedTable) -> None:
        tables, target = self._tables, step.target
        if step.action == "set_aside":
            tables.orders.pop(target, None)
            session.leave(target)
            if target not in tables.aside or tables.aside[target].reason != step.reason:
                self._say(f"table {target} is set aside: {step.reason}")
            tables.set_aside(target, step.reason, step.helps)
        elif step.action == "copy":
            self._copy(session, step, table)
        elif step.action == "widen" and target not in tables.orders:
            self._widen(session, table)

    def _copy(self, session: Session, step: TableStep, table: WantedTable) -> None:
        session.leave(step.target)
        if self._tables.order(step.target, step.reason, table.facts.oid):
            self._say(f"table {step.target} is copied: {step.reason}")

    def _widen(self, session: Session, table: WantedTable) -> None:
        state = self._tables.have[table.target]
        new = msgspec.structs.replace(state, facts=table.facts, columns=table.columns)
        self._tables.put(table.target, new)
        session.reshape(table.target, new)

    def _explain(
        self, session: Session, step: TableStep, table: WantedTable, read_upto: Callable[[], int]
    ) -> None:
        """Decide whether a TRUNCATE explains new files, once the stream is where the look was."""
        assert self.looked is not None
        target = step.target
        if read_upto() < self._doubts.setdefault(target, self.looked.lsn):
            return
        self.note_truncated(session.truncated)
        self._doubts.pop(target)
        known = self._truncated.pop(table.facts.oid, set())
        if truncated_by(self._tables.have[target].facts, table.facts, known):
            self._widen(session, table)
        else:
            self._copy(session, step, table)

    def _leave(self, target: str, reason: str) -> None:
        tables = self._tables
        state = tables.have[target]
        tables.orders.pop(target, None)
        tables.aside.pop(target, None)
        if state.phase == "left":
            return
        self._say(f"table {target} is no longer followed: {reason}")
        left = msgspec.structs.replace(state, phase="left", reason=reason, since=now(), helps=())
        if self._options.on_removed == "empty":
            tables.empty(target, left)
        else:
            tables.put(target, left)

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._say(text)
