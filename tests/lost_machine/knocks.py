"""Writes at ``store`` to processes that were replaced while they were paused.

A woken process that nobody writes to ends with its next commit. One write must be enough: it is
refused, or its outcome is unknown, and the process ends.
"""

from __future__ import annotations

import time
from collections import Counter

import pyarrow.flight as fl

from tests.crash.checking import Findings
from tests.crash.history import History
from tests.crash.ledger import Note
from tests.crash.session import ERRORS, Batch, Refused, Unclear
from tests.crash.writer import name_of
from tests.drivers.daemon import Daemon
from tests.lost_machine.clients import CheckedSession, Surroundings
from tests.lost_machine.tables import KNOCKS

TABLE = "plain"
WITHIN_S = 60.0


class Knocks:
    """A client that writes to woken processes; its rows are counted as those of the others."""

    def __init__(self, around: Surroundings, counts: Counter[str], findings: Findings) -> None:
        self._around = around
        self._counts = counts
        self._findings = findings
        history = History(around.folder / "history")
        path = around.folder / f"{name_of(KNOCKS)}.ledger"
        self._note = Note(path, KNOCKS, history)
        self._next = 0

    def knock(self, daemon: Daemon, *, replaced: bool) -> None:
        """Write until the process ends or refuses for good.

        Args:
            replaced: another process has taken its place, so that it may accept nothing.
        """
        give_up_at = time.monotonic() + WITHIN_S
        while time.monotonic() < give_up_at:
            batch = Batch(self._next, 3, self._next)
            self._next += batch.count
            self._note.sent(TABLE, batch.start, [batch])
            try:
                with fl.connect(daemon.flight) as client:
                    session = CheckedSession(client, None, self._around)
                    [(_, answer)] = session.exchange(TABLE, KNOCKS, [batch])
                    self._note.kept(TABLE, batch.start)
                    session.finish(TABLE)
            except (Refused, Unclear):
                continue
            except ERRORS:
                self._counts["writes that woken processes refused"] += 1
                return
            self._counts["writes that woken processes took before they were replaced"] += 1
            if replaced:
                self._findings.add(
                    f"{daemon.data_dir.name} was replaced and took a write: {answer}"
                )
                return
            time.sleep(0.1)
        self._findings.add(f"{daemon.data_dir.name} refused no write within {WITHIN_S:g} s")
