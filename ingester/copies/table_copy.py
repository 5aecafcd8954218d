"""One copy of a table, from its first batch until it is the table, or given up.

    OPEN ──finish──▶ COMPLETE ──take over──▶ DONE      complete: all rows are in files
      │                  │ ▲ │                         a failure that a retry helps: finish again
      └───── end ────────┘ └─┘
             ▼
            ENDED                                      failed, aborted or forgotten; files go

Law of this file: which states follow which is in :data:`TRANSITIONS`. Loop only, but for its files.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa
import trio

from ingester.copies.copy_files import CopyFiles
from ingester.errors import IngesterError, InvalidRequest
from ingester.schema import Normaliser
from ingester.tables.new_version import WholeTable
from persist.table import TableDefinition, TableKey


class CopyState(Enum):
    """The state of a copy."""

    OPEN = "open"
    """Rows are taken."""
    COMPLETE = "complete"
    """No more rows are taken: all are in files, or are about to be."""
    DONE = "done"
    """It is the table."""
    ENDED = "ended"
    """It will never be: it failed, was aborted, or nobody went on with it."""


TRANSITIONS: dict[CopyState, frozenset[CopyState]] = {
    CopyState.OPEN: frozenset({CopyState.COMPLETE, CopyState.ENDED}),
    CopyState.COMPLETE: frozenset({CopyState.DONE, CopyState.ENDED}),
    CopyState.DONE: frozenset(),
    CopyState.ENDED: frozenset(),
}


class IllegalTransition(RuntimeError):
    """A copy was told to do what its state does not allow: a defect in this code."""


@dataclass(frozen=True, slots=True)
class CopyName:
    """The client's name of a copy, and the table that it is of."""

    table: TableKey
    copy: str

    def __str__(self) -> str:
        return f"copy {self.copy!r} of table {'/'.join(self.table)}"


@dataclass(frozen=True, slots=True)
class CopyTarget:
    """What a copy makes.

    Attributes:
        number: The table version that its files are in.
        claim: The name under which the number was claimed; empty for version 1 of a new table.
        definition: The table as the copy makes it.
    """

    number: int
    claim: str
    definition: TableDefinition

    @property
    def is_new(self) -> bool:
        """Whether there was no table when the copy began."""
        return not self.claim


@dataclass(frozen=True, slots=True)
class CopyDone:
    """The table as a copy has made it."""

    table_version: int
    manifest_version: int
    rows: int


class TableCopy:
    """A copy. Loop only, but for ``files`` and what says otherwise."""

    def __init__(
        self, name: CopyName, target: CopyTarget, sent: pa.Schema, files: CopyFiles
    ) -> None:
        self.name = name
        self.target = target
        self.sent = sent
        self.files = files
        self.state = CopyState.OPEN
        self.streams = 0
        self._touched_at = time.monotonic()
        self.whole: WholeTable | None = None
        """What is committed, from the first attempt on."""
        self.done: CopyDone | None = None
        self.error: IngesterError | None = None
        """Why the last attempt to finish it failed."""
        self.attempt: trio.Event | None = None
        """An attempt to finish it is under way, until this is set."""

    @property
    def touched_at(self) -> float:
        """When somebody last went on with it, on the monotonic clock."""
        return max(self._touched_at, self.files.touched_at)

    def touch(self) -> None:
        """Note that somebody goes on with it."""
        self._touched_at = time.monotonic()

    def forget_files(self) -> None:
        """Let go of the list of files: a version has them."""
        self.whole = None
        self.files.adds = []

    def normaliser(self) -> Normaliser:
        """What brings batches to the columns of the table. Any thread."""
        return Normaliser(self.target.definition, self.sent)

    def check_like(self, sent: pa.Schema, primary_key: tuple[str, ...]) -> None:
        """Raise InvalidRequest for a stream that cannot be of this copy."""
        if self.state is not CopyState.OPEN:
            raise InvalidRequest(f"{self.name} is {self.state.value}, and takes no more rows")
        if self.target.definition.primary_key != primary_key:
            raise InvalidRequest(
                f"{self.name} has the primary key {list(self.target.definition.primary_key)}, this"
                f" stream {list(primary_key)}"
            )
        if not self.sent.equals(sent):
            raise InvalidRequest(
                f"{self.name} has the columns {_columns(self.sent)}; this stream {_columns(sent)}"
            )

    def become(self, state: CopyState) -> None:
        """Go on to another state; IllegalTransition where the table does not allow it."""
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransition(f"a copy that is {self.state.value} became {state.value}")
        self.state = state


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
