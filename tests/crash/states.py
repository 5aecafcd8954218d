"""The states of writers, which their batches carry, compared with the rows that are present.

A writer's state in a table is the number of its rows so far. When no client writes, the state is
that of the writer's last present batch. A greater state arrived without its rows; a smaller one
was lost, or overwritten by a duplicate batch.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from tests.crash.checking import Findings, counts_by_writer
from tests.crash.ledger import Batches, WriterLedger
from tests.crash.rows import NAMESPACE

SHARED = b"what the writers of the campaign have in common" * 40
Ask = Callable[..., list[dict[str, Any]]]


def carries(writer: int, start: int) -> bool:
    """Return whether a batch carries a state.

    Of most writers some do not: small batches without one that wait together share a record of the
    log.
    """
    return writer % 4 == 2 or start % 3 == 0


def checkpoint_of(writer: int, start: int, count: int) -> dict[str, str] | None:
    """Return the checkpoint in a batch's metadata; ``None`` if it carries none."""
    if not carries(writer, start):
        return None
    state = base64.b64encode(str(start + count).encode()).decode()
    checkpoint = {"partition": f"writer-{writer}", "state": state}
    if writer % 4 == 0:
        checkpoint["shared"] = base64.b64encode(SHARED).decode()
    return checkpoint


class StateCheck:
    """The states of one table, of which all rows were read while no client wrote."""

    def __init__(self, table: str, where: str, ask: Ask) -> None:
        """``ask``: an action of the daemon and its body."""
        self._table = table
        self._where = where
        self._ask = ask

    def check(
        self,
        rows: pa.Table,
        ledgers: Iterable[WriterLedger],
        findings: Findings,
        *,
        durable: bool = False,
    ) -> None:
        """Compare. ``durable``: everything is flushed, states as well."""
        counts = counts_by_writer(rows)
        for ledger in ledgers:
            found = counts.get(ledger.writer, np.zeros(0, np.int64))
            expected = _expected(ledger, self._table, found)
            [stored] = self._ask(
                "checkpoint_get",
                namespace=NAMESPACE,
                table=self._table,
                partition=f"writer-{ledger.writer}",
            )
            for fault in faults_of(ledger.writer, expected, stored, durable=durable):
                findings.add(f"{self._where}, {self._table}, writer {ledger.writer}: {fault}")


def _expected(ledger: WriterLedger, table: str, found: np.ndarray) -> int | None:
    batches = ledger.tables.get(table, Batches())
    ends = [
        start + count
        for start, count in zip(batches.starts, batches.counts, strict=True)
        if carries(ledger.writer, start) and start < len(found) and found[start]
    ]
    return max(ends, default=None)


def faults_of(
    writer: int, expected: int | None, stored: dict[str, Any], *, durable: bool
) -> list[str]:
    """Return the faults of an answer of ``checkpoint_get``."""
    states = {name: _number(stored[name]) for name in ("state", "durable_state")}
    faults = []
    if states["state"] != expected:
        faults.append(f"state {states['state']}, and rows up to {expected} are there")
    if (states["durable_state"] or 0) > (expected or 0):
        faults.append(f"durable state {states['durable_state']} is beyond {expected}")
    if durable and not (stored["durable"] and states["durable_state"] == expected):
        faults.append(f"all is persisted, and the durable state is {states['durable_state']}")
    shared = SHARED if writer % 4 == 0 and expected is not None else None
    if stored["shared"] != (None if shared is None else base64.b64encode(shared).decode()):
        faults.append("what its state shares with others is not there, or is not its own")
    return faults


def _number(state: str | None) -> int | None:
    return None if state is None else int(base64.b64decode(state))
