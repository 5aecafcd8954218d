"""The end of a campaign in one world: no kill follows, and everything is read in every way.

The world is healed. Clients that retry have all their batches acknowledged, and everything is
flushed. The daemon, the files and a clean restart agree with the writers' notes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa

from tests.crash.checking import TableCheck
from tests.crash.reading import Reader, call, files_of
from tests.crash.report import Report
from tests.crash.rows import TABLES
from tests.crash.states import StateCheck
from tests.crash.worlds import World
from tests.crash.writer import name_of
from tests.crash.writers import Writers
from tests.drivers.daemon import Daemon

PERSIST_TIMEOUT_S = 120


class Ending:
    """The end of one campaign."""

    def __init__(
        self,
        world: World,
        start: Callable[[], Daemon],
        writers: Writers,
        reader: Reader,
        report: Report,
    ) -> None:
        self._world = world
        self._start = start
        self._writers = writers
        self._reader = reader
        self._report = report

    def run(self) -> None:
        """Start, let writers finish, flush, read, stop, read, start, read."""
        daemon, writers = self._start(), self._writers
        self._read_daemon("after the last kill", daemon)
        writers.go(daemon.flight)
        writers.pause()
        for end in writers.wait_idle():
            if end["error"] is not None:
                self._report.findings.add(f"{end['idle']} at the end: {end['error']}")
        self._check_resent()
        self._read_daemon("with all resent", daemon)
        call(daemon.flight, "persist", timeout_s=PERSIST_TIMEOUT_S)
        self._read_daemon("persisted", daemon, durable=True)
        self._check_origins(daemon)
        self._read_files("persisted")
        self._stop(daemon)
        self._read_files("stopped")
        self._read_daemon("after a clean stop", self._start())

    def _stop(self, daemon: Daemon) -> None:
        code = daemon.terminate()
        if code != 0:
            self._report.findings.add(f"SIGTERM with everything persisted: exit code {code}")
        self._report.files += sum(len(files_of(self._world.store, t.name)) for t in TABLES)

    def _check_resent(self) -> None:
        for ledger in self._writers.ledgers:
            if not ledger.resends:
                continue
            for table, batches in ledger.tables.items():
                unknown = sum(1 for fate in batches.fates if fate == 0)
                if unknown:
                    self._report.findings.add(
                        f"writer {ledger.writer}, {table}: {unknown} batches without an answer"
                        " although they were sent again"
                    )

    def _check_origins(self, daemon: Daemon) -> None:
        known = {each["origin"]: each for each in call(daemon.flight, "origins")}
        for ledger in self._writers.ledgers:
            if not ledger.resends or ledger.last_sequence < 0:
                continue
            origin = known.get(name_of(ledger.writer), {})
            for name in ("memory_sequence", "durable_sequence"):
                if origin.get(name) != ledger.last_sequence:
                    self._report.findings.add(
                        f"writer {ledger.writer}: everything is persisted, the last sequence is"
                        f" {ledger.last_sequence}, {name} is {origin.get(name)}"
                    )

    def _read_daemon(self, where: str, daemon: Daemon, *, durable: bool = False) -> None:
        def check_states(table: str, rows: pa.Table) -> None:
            states = StateCheck(table, where, partial(call, daemon.flight))
            ledgers, findings = self._writers.ledgers, self._report.findings
            states.check(rows, ledgers, findings, durable=durable)

        self._read(where, lambda table: self._reader.read(daemon.flight, table), check_states)

    def _read_files(self, where: str) -> None:
        how = f"pyarrow, {where}"
        rows = self._read(how, lambda table: self._reader.read_files(self._world.store, table))
        self._report.read_at_end[how] += rows

    def _read(
        self,
        where: str,
        read: Callable[[str], Any],
        also: Callable[[str, pa.Table], None] = lambda table, rows: None,
    ) -> int:
        total = 0
        for table in TABLES:
            check = TableCheck(table.name, self._writers.ledgers, where)
            rows: pa.Table = read(table.name)
            check.check(rows, self._report.findings, settle=True)
            also(table.name, rows)
            total += rows.num_rows
        return total
