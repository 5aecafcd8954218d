"""One copy of a table: its definition, and its states until it is the table or given up.

    OPEN ──finish──▶ COMPLETE ──take over──▶ DONE      complete: all rows are in files
      │                  │ ▲ │                         a retryable failure: finish again
      └───── end ────────┘ └─┘
             ▼
            ENDED                                      failed, aborted or forgotten; files deleted

:data:`TRANSITIONS` lists the legal transitions. The copied table has the copy's columns and no
others; where it exists and its layout still fits (partitions, sort order, unit of times), it keeps
it. Loop only, except for its files.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa
import trio

from ingester.copies.copy_files import CopyFiles
from ingester.errors import BadRequest, IngesterError
from ingester.schema import Normaliser
from ingester.schema.definition import define_table
from ingester.schema.normalise import kept_schema
from ingester.tables.new_version import WholeTable
from persist.table import TableDefinition, TableKey


def copy_definition(
    sent: pa.Schema, primary_key: Sequence[str], there: TableDefinition | None
) -> TableDefinition:
    """The definition of the copied table.

    Args:
        sent: The schema of the copy's batches.
        there: The table that it replaces, or None.

    Raises:
        BadRequest: an invalid name, type or key.
    """
    if not primary_key:
        raise BadRequest("copy: a copied table needs a primary key, and none is given")
    unit = "us" if there is None else there.timestamp_unit
    fields = [field.with_nullable(True) for field in kept_schema(sent, unit, ())]
    schema = pa.schema(fields)
    if there is None:
        return define_table(schema, primary_key=primary_key, partition_by=[], timestamp_unit=unit)
    return _laid_out(schema, primary_key, there).redefined(there)


def _laid_out(
    schema: pa.Schema, primary_key: Sequence[str], there: TableDefinition
) -> TableDefinition:
    names, unit = set(schema.names), there.timestamp_unit
    spec = there.spec.texts() if names.issuperset(there.spec.columns) else ()
    sort_by = there.sort_by if names.issuperset(there.sort_by) else ()
    for partition_by, order in ((spec, sort_by), (spec, ()), ((), sort_by)):
        try:
            return define_table(
                schema,
                primary_key=primary_key,
                partition_by=partition_by,
                sort_by=order,
                timestamp_unit=unit,
            )
        except BadRequest:
            continue  # the new columns or key do not support one of the two
    return define_table(schema, primary_key=primary_key, partition_by=[], timestamp_unit=unit)


class CopyState(Enum):
    """The state of a copy."""

    OPEN = "open"
    """Rows are accepted."""
    COMPLETE = "complete"
    """No more rows are accepted: all are in files, or about to be."""
    DONE = "done"
    """It is the table."""
    ENDED = "ended"
    """It failed, was aborted or was forgotten."""


TRANSITIONS: dict[CopyState, frozenset[CopyState]] = {
    CopyState.OPEN: frozenset({CopyState.COMPLETE, CopyState.ENDED}),
    CopyState.COMPLETE: frozenset({CopyState.DONE, CopyState.ENDED}),
    CopyState.DONE: frozenset(),
    CopyState.ENDED: frozenset(),
}


class IllegalCopyTransition(RuntimeError):
    """A bug: a transition that :data:`TRANSITIONS` does not allow."""


@dataclass(frozen=True, slots=True)
class CopyName:
    """The client's name of a copy, and its table."""

    table: TableKey
    copy: str

    def __str__(self) -> str:
        return f"copy {self.copy!r} of table {'/'.join(self.table)}"


@dataclass(frozen=True, slots=True)
class CopyTarget:
    """What a copy makes.

    Attributes:
        number: The table version of its files.
        claim: The name under which the number was claimed; empty for version 1 of a new table.
        definition: The copied table's definition.
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
    """The result of a copy."""

    table_version: int
    manifest_version: int
    rows: int


class IncomingCopy:
    """A copy. Loop only, except for ``files`` and :meth:`normaliser`."""

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
        """The table to commit, from the first attempt on."""
        self.done: CopyDone | None = None
        self.error: IngesterError | None = None
        """Why the last attempt failed."""
        self.attempt: trio.Event | None = None
        """Set when the running attempt ends."""

    @property
    def touched_at(self) -> float:
        """The time of the last activity, on the monotonic clock."""
        return max(self._touched_at, self.files.touched_at)

    def touch(self) -> None:
        """Note activity."""
        self._touched_at = time.monotonic()

    def forget_files(self) -> None:
        """Free the list of files once a version has them."""
        self.whole = None
        self.files.adds = []

    def normaliser(self) -> Normaliser:
        """Converts batches to the table's columns. Any thread."""
        return Normaliser(self.target.definition, self.sent)

    def check_like(self, sent: pa.Schema, primary_key: tuple[str, ...]) -> None:
        """Raise BadRequest for a stream that does not belong to this copy."""
        if self.state is not CopyState.OPEN:
            raise BadRequest(f"{self.name} is {self.state.value} and takes no more rows")
        if self.target.definition.primary_key != primary_key:
            raise BadRequest(
                f"{self.name} has the primary key {list(self.target.definition.primary_key)}, this"
                f" stream {list(primary_key)}"
            )
        if not self.sent.equals(sent):
            raise BadRequest(
                f"{self.name} has the columns {_columns(self.sent)}; this stream {_columns(sent)}"
            )

    def become(self, state: CopyState) -> None:
        """Change the state; IllegalCopyTransition if :data:`TRANSITIONS` forbids it."""
        if state not in TRANSITIONS[self.state]:
            raise IllegalCopyTransition(f"a copy that is {self.state.value} became {state.value}")
        self.state = state


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
