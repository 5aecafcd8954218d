"""Compares reads with the writers' notes.

A check passes only if every acknowledged batch is present exactly once, no unsent row is
present, and each batch of unknown fate is present completely and once, or not at all. Of the
unknown batches of one stream only a prefix may be present, because the log has one order. Rows
that one query has shown appear in every later query, also after a crash.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tests.crash.ledger import Batches, Fate, WriterLedger
from tests.crash.rows import wrong_rows

MAX_TOLD = 20


@dataclass(slots=True)
class Findings:
    """Descriptions of the faults, and the number of checks."""

    faults: list[str] = field(default_factory=list)
    more: int = 0
    checks: int = 0
    rows: int = 0

    def add(self, fault: str) -> None:
        """Keep a fault; beyond the first few only count it."""
        if len(self.faults) < MAX_TOLD:
            self.faults.append(fault)
        else:
            self.more += 1


def counts_by_writer(rows: pa.Table) -> dict[int, np.ndarray]:
    """Count, per writer, how often each of its row numbers is in ``rows``."""
    writer = rows["writer"].to_numpy()
    n = rows["n"].to_numpy()
    return {int(w): np.bincount(n[writer == w]) for w in np.unique(writer)}


class TableCheck:
    """One read of one table. ``before`` is the state of the notes before the read began."""

    def __init__(self, table: str, ledgers: Iterable[WriterLedger], where: str) -> None:
        self.table = table
        self.where = where
        self._ledgers = {ledger.writer: ledger for ledger in ledgers}
        self._before = {
            writer: list(batches.fates)
            for writer, ledger in self._ledgers.items()
            if (batches := ledger.tables.get(table)) is not None
        }

    def check(self, rows: pa.Table, findings: Findings, *, settle: bool) -> None:
        """Compare. The ledgers must have been updated after the read.

        Args:
            settle: No write is in progress (the daemon was killed and replayed), so the fate of
                unknown batches is final.
        """
        findings.checks += 1
        findings.rows += rows.num_rows
        if wrong := wrong_rows(rows):
            findings.add(f"{self._at()}: {wrong} rows have columns that their writer never sent")
        counts = counts_by_writer(rows)
        for writer in counts.keys() - self._ledgers.keys():
            findings.add(f"{self._at()}: rows of a writer {writer} that does not exist")
        for writer, ledger in self._ledgers.items():
            batches = ledger.tables.get(self.table, Batches())
            found = counts.get(writer, np.zeros(0, np.int64))
            self._check_writer(ledger, batches, found, findings, settle=settle)

    def _check_writer(
        self,
        ledger: WriterLedger,
        batches: Batches,
        found: np.ndarray,
        findings: Findings,
        *,
        settle: bool,
    ) -> None:
        if len(found) > batches.rows:
            extra = int(found[batches.rows :].sum())
            findings.add(f"{self._at(ledger)}: {extra} rows from {batches.rows} on were never sent")
        if not batches.starts:
            return
        found = np.pad(found[: batches.rows], (0, max(0, batches.rows - len(found))))
        least = np.minimum.reduceat(found, batches.starts)
        most = np.maximum.reduceat(found, batches.starts)
        before = self._before.get(ledger.writer, [])
        cut: set[int] = set()
        for index, (low, high) in enumerate(zip(least.tolist(), most.tolist(), strict=True)):
            known = before[index] if index < len(before) else Fate.SENT
            if batches.fates[index] is Fate.GONE:
                known = Fate.GONE
            fault = _fault(known, low, high)
            burst = batches.bursts[index]
            if fault is None and known is Fate.SENT and high and burst in cut:
                fault = "is there, an earlier one of the same stream is not"
            if fault is not None:
                findings.add(f"{self._at(ledger)}: batch {_name(batches, index)} {fault}")
            if known is Fate.SENT and not high:
                cut.add(burst)
            _learn(ledger, batches, index, seen=bool(high), settle=settle)

    def _at(self, ledger: WriterLedger | None = None) -> str:
        return f"{self.where}, {self.table}" + (f", writer {ledger.writer}" if ledger else "")


def _fault(known: Fate, low: int, high: int) -> str | None:
    if high > 1:
        return f"is there up to {high} times"
    if low != high:
        return "is there in part"
    if known is Fate.KEPT and not low:
        return "is lost: it was acknowledged, or a query has shown it"
    if known is Fate.GONE and high:
        return "is there: it was refused, or lost in an earlier crash"
    return None


def _learn(ledger: WriterLedger, batches: Batches, index: int, *, seen: bool, settle: bool) -> None:
    if batches.fates[index] is not Fate.SENT:
        return
    if seen:
        batches.fates[index] = Fate.KEPT
    elif settle and not ledger.resends:
        batches.fates[index] = Fate.GONE


def _name(batches: Batches, index: int) -> str:
    return f"{batches.starts[index]}+{batches.counts[index]} (burst {batches.bursts[index]})"
