"""Deduplication: each sequence of an origin is applied once.

Law of this file: a repeat of something durable is answered at once as a duplicate; a repeat of
something under way waits for the first copy, and takes its place if that one fails. Parts that are
in files already, of which this daemon's log knows nothing, are left out before the log.
"""

from __future__ import annotations

from collections.abc import Callable

from ingester.dml.operation import Answer, DmlSink, Operation, Part
from ingester.errors import OwnedElsewhere
from ingester.origins.fates import Fates
from ingester.origins.origin_table import OriginTable
from ingester.origins.registry import Origins
from ingester.write.covered_rows import uncovered
from persist.manifest import PartitionKey
from persist.table import TableDefinition, TableKey

Shrink = Callable[[Operation, tuple[Part, ...]], None]


class DedupSink:
    """Hands on operations with a new sequence; a :class:`ingester.dml.DmlSink`.

    Args:
        shrink: reduces an operation, and its record for the log, to these parts.
        definition_of: gives the current definition of a table.
    """

    def __init__(
        self,
        origins: Origins,
        inner: DmlSink,
        shrink: Shrink,
        definition_of: Callable[[TableKey], TableDefinition],
    ) -> None:
        self._origins = origins
        self._definition_of = definition_of
        self._inner = inner
        self._shrink = shrink

    def submit(self, operation: Operation, answer: Answer) -> None:
        """Hand on an operation that is new; answer one that is not."""
        name, sequence = operation.origin, operation.origin_sequence
        if name is None or sequence is None:
            self._inner.submit(operation, answer)
            return
        origin_table = self._origins.table(name, operation.table)
        try:
            new = origin_table.is_new(sequence)
        except OwnedElsewhere as exc:
            answer(operation, exc)
            return
        if not new:
            operation.duplicate = True
            answer(operation, None)
        elif origin_table.begin(sequence, operation.spec_id):
            self._submit_first(origin_table, sequence, operation, answer)
        else:
            self._await_first(origin_table.fates, sequence, operation, answer)

    def _submit_first(
        self, origin_table: OriginTable, sequence: int, operation: Operation, answer: Answer
    ) -> None:
        def end(done: Operation, error: BaseException | None) -> None:
            waiting = origin_table.fates.end(sequence, error)
            answer(done, error)
            for fate in waiting:
                fate(error)

        try:
            if covered := origin_table.covered(sequence):
                self._leave_out(operation, covered)
        except Exception as exc:
            end(operation, exc)
        else:
            self._inner.submit(operation, end)

    def _await_first(
        self, fates: Fates, sequence: int, operation: Operation, answer: Answer
    ) -> None:
        # One above tells nothing of one that has no copy: that may be sent again, as it was lost.
        exact = sequence in fates.under_way

        def after(error: BaseException | None) -> None:
            if error is None and exact:
                operation.duplicate = True
                answer(operation, None)
            elif error is not None and fates.missing is not None and sequence > fates.missing:
                answer(operation, error)
            else:
                self.submit(operation, answer)

        fates.await_first(sequence, after)

    def _leave_out(self, operation: Operation, covered: frozenset[PartitionKey]) -> None:
        definition = self._definition_of(operation.table)
        left = uncovered(operation.parts, operation.spec_id, covered, definition)
        if left != operation.parts:
            self._shrink(operation, left)
            operation.duplicate = not left
