"""Reads of all tables during a campaign, compared with the writers' notes.

A read must have every row that was acknowledged before it began, once, and no row that was not
sent. A row that was lost is missing in later reads, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from ingester.client import Client, ClientError
from tests.crash.checking import TableCheck, counts_by_writer
from tests.crash.history import History, now_s
from tests.crash.ledger import WriterLedger, has_origin
from tests.crash.reading import COLUMNS, Reader, StoreAt
from tests.crash.rows import NAMESPACE, TableKind
from tests.crash.states import StateCheck
from tests.crash.writer import name_of
from tests.lost_machine.advice import ask
from tests.lost_machine.clients import AT_DISK, DiskWriter
from tests.lost_machine.homes import Homes
from tests.lost_machine.losses import HOMES
from tests.lost_machine.report import Report
from tests.lost_machine.tables import DISK, HOME_OF, KEYED, KINDS, KNOCKS, RESENDS, SHARED

READ_WITHIN_S = 180.0


class Checks:
    """Reads through a client of all daemons, the files and Spark."""

    def __init__(self, folder: Path, homes: Homes, disk: DiskWriter, report: Report) -> None:
        self.history = History(folder / "history")
        self._homes = homes
        self._disk = disk
        self._report = report
        self._findings = report.findings
        self._reader = Reader(self.history, "campaign")
        self._ledgers = [
            WriterLedger(
                folder / f"{name_of(number)}.ledger",
                number,
                resends=number in RESENDS or (number not in (DISK, KNOCKS) and has_origin(number)),
            )
            for number in (*HOME_OF, KNOCKS)
        ]
        self._disk_rows_gone: set[int] = set()
        self._connected: tuple[list[str], Client] | None = None

    def check(
        self,
        where: str,
        *,
        but: str | None = None,
        tables: Sequence[TableKind] = KINDS,
        disk: bool = True,
    ) -> list[tuple[str, pa.Table]]:
        """Check tables while clients write.

        Args:
            but: the address of a daemon that is away.
            disk: also check the table whose rows are acknowledged on a disk.
        """
        found = []
        for table in tables:
            self._update()
            check = TableCheck(table.name, self._ledgers, where)
            rows = self._read(table.name, but)
            self._update()
            check.check(rows, self._findings, settle=False)
            found.append((table.name, rows))
        if disk:
            self._check_disk(where, but)
        return found

    def check_stored(
        self, how: str, read: Callable[[str], pa.Table] | None = None, store: StoreAt | None = None
    ) -> None:
        """Read the files of all tables, which have everything now; by default with pyarrow."""
        for table in KINDS:
            check = TableCheck(table.name, self._ledgers, how)
            sent = now_s()
            if read is not None:
                rows = read(table.name)
                self._reader.saw(table.name, rows, sent, None, how=how)
            else:
                assert store is not None
                rows = self._reader.read_files(store, table.name)
            check.check(rows, self._findings, settle=True)
            self._report.read_at_end[how] += rows.num_rows

    def check_states(self, table: str, rows: pa.Table, *, durable: bool) -> None:
        """Check the states of the writers of each daemon there."""
        if table not in (*SHARED, KEYED):
            return
        for home in range(HOMES):
            ledgers = [
                ledger
                for ledger in self._ledgers
                if HOME_OF.get(ledger.writer) == home and ledger.writer not in (*RESENDS, DISK)
            ]
            here = partial(ask, self._homes.wait(home))
            states = StateCheck(table, f"states, durable: {durable}", here)
            states.check(rows, ledgers, self._findings, durable=durable)

    def found_again(self, endpoint: str) -> None:
        """Expect all that this process acknowledged on its disk, which was adopted."""
        notes = self._disk.notes
        starts = [start for start, by in list(notes.by.items()) if by == endpoint]
        notes.stored.update(starts)
        self._report.counts["batches at disk on adopted disks"] += len(starts)

    def add_up(self) -> None:
        """Add what the writers noted to the report."""
        report = self._report
        report.counts["batches at disk"] += len(self._disk.notes.by)
        report.counts["batches at disk that were lost"] += len(self._disk_rows_gone)
        for ledger in self._ledgers:
            ledger.update()
            report.acknowledged_rows += ledger.acknowledged_rows
            for complaint in ledger.complaints:
                self._findings.add(complaint)

    def _read(self, table: str, but: str | None = None) -> pa.Table:
        """Read a table at all daemons, in one consistent answer."""
        give_up_at = time.monotonic() + READ_WITHIN_S
        while True:
            sent = now_s()
            try:
                rows = self._client(but).query(NAMESPACE, table, COLUMNS, timeout_s=60.0)
            except ClientError as exc:
                if time.monotonic() > give_up_at:
                    raise
                self._report.reads_again[type(exc).__name__] += 1
                time.sleep(0.1)
                continue
            if table != AT_DISK:  # whose rows may be lost
                self._reader.saw(table, rows, sent, None, how="all daemons")
            return rows

    def _client(self, but: str | None = None) -> Client:
        """A client of all daemons that serve."""
        endpoints = [one for one in self._homes.endpoints if one != but]
        if self._connected is None or self._connected[0] != endpoints:
            if self._connected is not None:
                self._connected[1].close()
            self._connected = endpoints, Client(endpoints, timeout_s=10.0)
        return self._connected[1]

    def _check_disk(self, where: str, but: str | None) -> None:
        """Rows at ``disk`` may be lost with their machine, but those in files are there once."""
        notes = self._disk.notes
        serving = set(self._homes.endpoints) - {but}
        must = {start for start, by in notes.by.items() if by in serving or start in notes.stored}
        known = len(notes.starts)
        rows = self._read(AT_DISK, but)
        there = counts_by_writer(rows).get(DISK, np.zeros(0, np.int64))
        all_serve = serving == set(self._homes.endpoints) - {but}
        for start, count in zip(notes.starts[:known], notes.counts[:known], strict=True):
            counts = {int(n) for n in there[start : start + count]} or {0}
            if len(there) < start + count:
                counts.add(0)
            batch = f"{where}, {AT_DISK}: batch {start}+{count}"
            if counts != {1} and start in must and all_serve:
                self._findings.add(f"{batch} is lost with no machine, or with an adopted disk")
            if max(counts) > 1:
                self._findings.add(f"{batch} is there {counts} times")
            if 0 in counts and start in notes.by:
                self._disk_rows_gone.add(start)

    def _update(self) -> None:
        for ledger in self._ledgers:
            ledger.update()
