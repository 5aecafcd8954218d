"""Deduplication: each sequence of an origin is applied once.

    new                     ─▶ the log
    durable already         ─▶ answered at once, as a duplicate; refused if it has other rows
                               (a stream at ``store`` waits until the store has the first copy)
    under way               ─▶ waits for the first copy, and takes its place if that one fails
    another stream's are under way ─▶ waits for these: a repeat of one that fails comes before it
    new here, partly in files (another daemon's log had it) ─▶ the covered rows are left out

Rows are covered by partition, under the partition spec that the table had when they came. A repeat
is laid out by today's spec: a row is left out only if the partition that it had then is covered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import pyarrow as pa

from ingester.dml.operation import Operation, Part
from ingester.errors import BadRequest, OwnedElsewhere
from ingester.origins.origin_table import OriginTable
from ingester.origins.registry import Origins
from ingester.write.acknowledgement import Acknowledgement
from persist.manifest import PartitionKey
from persist.partitioning import split_batch, with_columns
from persist.table import TableDefinition, TableKey
from wal import Route, RouteState

Shrink = Callable[[Operation, tuple[Part, ...]], None]
AwaitStore = Callable[[tuple[Route, ...], Callable[[BaseException | None], None]], None]


class Deduplication:
    """Passes operations with a new sequence on to the log. Loop only.

    Args:
        append: queues an operation for the log.
        shrink: reduces an operation, and its record for the log, to these parts.
        definition_of: gives the current definition of a table.
        await_store: calls back when the store has all that was applied of the tables with these
            routes.
    """

    def __init__(
        self,
        origins: Origins,
        append: Callable[[Acknowledgement], None],
        shrink: Shrink,
        definition_of: Callable[[TableKey], TableDefinition],
        await_store: AwaitStore,
    ) -> None:
        self._origins = origins
        self._append = append
        self._shrink = shrink
        self._definition_of = definition_of
        self._await_store = await_store

    def submit(self, acknowledgement: Acknowledgement) -> None:
        """Pass on an operation that is new; answer one that is not."""
        operation = acknowledgement.operation
        name, sequence = operation.origin, operation.origin_sequence
        if name is None or sequence is None:
            self._append(acknowledgement)
            return
        origin_table = self._origins.table(name, operation.table)
        try:
            new = origin_table.is_new(sequence)
        except OwnedElsewhere as exc:
            acknowledgement.finish(exc)
            return
        whose = acknowledgement.whose
        if not new:
            self._answer_repeat(origin_table, acknowledgement)
        elif origin_table.fates.follows(sequence, whose):
            origin_table.begin(sequence, operation.spec_id, whose)
            acknowledgement.is_first_copy(origin_table.fates, sequence)
            self._append_uncovered(acknowledgement, origin_table)
        else:
            self._await_first_copy(origin_table, acknowledgement)

    def _answer_repeat(self, origin_table: OriginTable, acknowledgement: Acknowledgement) -> None:
        operation = acknowledgement.operation
        assert operation.origin_sequence is not None
        try:
            origin_table.check_repeat(operation.origin_sequence, operation.content)
        except BadRequest as exc:
            acknowledgement.finish(exc)
        else:
            operation.duplicate = True
            # The first copy may have been acknowledged when this daemon's disk had it.
            behind = behind_the_store(acknowledgement.routes)
            acknowledgement.shipped = acknowledgement.at_store or not behind
            if acknowledgement.at_store and behind:
                self._await_store(behind, acknowledgement.finish)
            else:
                acknowledgement.finish(None)

    def _append_uncovered(
        self, acknowledgement: Acknowledgement, origin_table: OriginTable
    ) -> None:
        operation = acknowledgement.operation
        sequence = operation.origin_sequence
        assert sequence is not None
        try:
            if covered := origin_table.covered(sequence):
                origin_table.check_repeat(sequence, operation.content)
                self._leave_out(operation, covered)
        except Exception as exc:
            acknowledgement.finish(exc)
        else:
            self._append(acknowledgement)

    def _await_first_copy(
        self, origin_table: OriginTable, acknowledgement: Acknowledgement
    ) -> None:
        fates, sequence = origin_table.fates, acknowledgement.operation.origin_sequence
        assert sequence is not None
        # A later sequence that is under way says nothing of one without a copy, which may be lost.
        exact = sequence in fates.under_way

        def hear(error: BaseException | None) -> None:
            if error is None and exact:
                self._answer_repeat(origin_table, acknowledgement)
            elif error is not None and fates.missing is not None and sequence > fates.missing:
                acknowledgement.finish(error)
            else:
                self.submit(acknowledgement)

        fates.await_first(sequence, hear)

    def _leave_out(self, operation: Operation, covered: frozenset[PartitionKey]) -> None:
        definition = self._definition_of(operation.table)
        left = uncovered(operation.parts, operation.spec_id, covered, definition)
        if left != operation.parts:
            self._shrink(operation, left)
            operation.duplicate = not left


def behind_the_store(routes: Iterable[Route]) -> tuple[Route, ...]:
    """Return the routes of tables with applied operations that only the local log may have."""
    return tuple(route for route in routes if route.state is not RouteState.SHIPPED)


def uncovered(
    parts: tuple[Part, ...],
    spec_id: int,
    covered: Collection[PartitionKey],
    definition: TableDefinition,
) -> tuple[Part, ...]:
    """Leave out the covered rows of an operation's parts; a part may become smaller, or go.

    Args:
        spec_id: the partition spec by which the parts were split.
        covered: partitions of this spec or earlier ones, all of whose rows are in files.
    """
    left = []
    for part in parts:
        if (spec_id, part.values) in covered:
            continue
        rows = without_covered(part.batch, spec_id, covered, definition)
        if rows.num_rows == part.batch.num_rows:
            left.append(part)
        elif rows.num_rows:
            left.append(Part(part.values, rows, rows.nbytes))
    return tuple(left)


def without_covered(
    rows: pa.RecordBatch,
    spec_id: int,
    covered: Collection[PartitionKey],
    definition: TableDefinition,
) -> pa.RecordBatch:
    """Leave out the rows whose partition by another spec than ``spec_id`` is covered."""
    for other in sorted({one for one, _ in covered} - {spec_id}):
        spec = definition.spec_of(other)
        asked = with_columns(rows, spec.columns, definition.schema)
        split = split_batch(asked, spec, folders=False)
        kept = [part for values, part in split if (other, values) not in covered]
        if len(kept) < len(split):
            kept = [part.select(rows.schema.names) for part in kept]
            rows = pa.concat_batches(kept) if kept else rows.slice(0, 0)
    return rows
