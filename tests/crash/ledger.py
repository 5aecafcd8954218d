"""The writers' notes: the only source of truth about a table's expected rows.

    S table burst start count sequence    about to be sent (noted beforehand)
    A table start                         acknowledged
    R table start                         refused: must be absent, now and later
    X text                                an unexpected event

"Sent" is written before the batch is sent, "acknowledged" after the answer has arrived. Each
writer has one file with one line per note; only the writer appends, only the campaign reads.

    SENT ──answer──▶ KEPT        SENT ──refusal──▶ GONE
    SENT ──seen after a crash──▶ KEPT        SENT ──not seen after a crash──▶ GONE  (no resend)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Protocol

from tests.crash.history import History, now_s


def has_origin(writer: int) -> bool:
    """Whether a writer has an origin and resends; every fourth writer has none."""
    return writer % 4 != 3


class Batch(Protocol):
    """The noted properties of a batch."""

    @property
    def start(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def sequence(self) -> int: ...


class Fate(IntEnum):
    """The expected presence of a batch."""

    SENT = 0
    """Unknown: present completely or not at all."""
    KEPT = 1
    """Present exactly once, permanently."""
    GONE = 2
    """Absent, permanently."""


@dataclass(slots=True)
class Batches:
    """All batches of one writer into one table, in the order of their numbers, without gaps."""

    starts: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    bursts: list[int] = field(default_factory=list)
    fates: list[Fate] = field(default_factory=list)
    index: dict[int, int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """The number of rows that were ever sent."""
        return self.starts[-1] + self.counts[-1] if self.starts else 0

    def add(self, burst: int, start: int, count: int) -> None:
        """Add a batch that is about to be sent."""
        assert start == self.rows, f"batch at {start}, {self.rows} expected"
        self.index[start] = len(self.starts)
        self.starts.append(start)
        self.counts.append(count)
        self.bursts.append(burst)
        self.fates.append(Fate.SENT)


class WriterLedger:
    """One writer's file, read as it grows."""

    def __init__(self, path: Path, writer: int, *, resends: bool) -> None:
        self.path = path
        self.writer = writer
        self.resends = resends
        """Whether the writer resends unacknowledged batches under the same sequence."""
        self.tables: dict[str, Batches] = {}
        self.complaints: list[str] = []
        self.acknowledged_rows = 0
        self.last_sequence = -1
        self._offset = 0

    def update(self) -> None:
        """Read the lines appended since the last call, except an incomplete last line."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        end = data.rfind(b"\n") + 1
        self._offset += end
        for line in data[:end].decode().splitlines():
            self._note(line)

    def _note(self, line: str) -> None:
        kind, _, rest = line.partition(" ")
        if kind == "X":
            self.complaints.append(f"writer {self.writer}: {rest}")
            return
        table, *numbers = rest.split(" ")
        values = [int(number) for number in numbers]
        batches = self.tables.setdefault(table, Batches())
        if kind == "S":
            burst, start, count, sequence = values
            batches.add(burst, start, count)
            self.last_sequence = max(self.last_sequence, sequence)
            return
        index = batches.index[values[0]]
        if kind == "A":
            if batches.fates[index] is Fate.GONE:
                self.complaints.append(
                    f"writer {self.writer}: batch {values[0]} of {table} was acknowledged after it"
                    " was refused or lost"
                )
            batches.fates[index] = Fate.KEPT
            self.acknowledged_rows += batches.counts[index]
        elif kind == "R":
            batches.fates[index] = Fate.GONE
        else:
            raise ValueError(f"ledger line {line!r}")


class Note:
    """The writer's side: appends lines, each batch of lines with one write.

    Notes also go to the history, if one exists.
    """

    def __init__(self, path: Path, writer: int = 0, history: History | None = None) -> None:
        self._path = path
        self._writer = writer
        self._history = history

    def sent(self, table: str, burst: int, batches: Sequence[Batch]) -> None:
        """Note batches that are about to be sent, many before the first answer."""
        self._add("sent", table, [(batch.start, {"count": batch.count}) for batch in batches])
        self.lines([f"S {table} {burst} {b.start} {b.count} {b.sequence}" for b in batches])

    def kept(self, table: str, start: int) -> None:
        """Note an acknowledged batch."""
        self._add("kept", table, [(start, {})])
        self.lines([f"A {table} {start}"])

    def refused(self, table: str, starts: Sequence[int]) -> None:
        """Note refused batches, which are not sent again."""
        self._add("refused", table, [(start, {}) for start in starts])
        self.lines([f"R {table} {start}" for start in starts])

    def complaint(self, text: str) -> None:
        """Note an unexpected event."""
        self.lines([f"X {' '.join(text.split())}"])

    def lines(self, lines: list[str]) -> None:
        """Append lines, which are visible to the reader on return."""
        with self._path.open("ab") as file:
            file.write("".join(f"{line}\n" for line in lines).encode())

    def _add(self, kind: str, table: str, batches: list[tuple[int, dict[str, int]]]) -> None:
        if self._history is not None:
            what = {"is": kind, "t": now_s(), "by": f"writer-{self._writer}", "table": table}
            self._history.add(
                *({**what, "writer": self._writer, "start": s, **more} for s, more in batches)
            )
