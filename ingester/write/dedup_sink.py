"""Duplicates stop here: an origin's sequence is applied once.

Law of this file: a repeat of something durable is answered at once as a duplicate; a repeat of
something under way waits for the first copy, and takes its place if that one fails. Parts that are
in files already, of which this daemon's log knows nothing, are left out before the log.
"""

from __future__ import annotations

from collections.abc import Callable

from ingester.dml.operation import Operation
from ingester.dml.part import Part
from ingester.dml.sink import Answer, DmlSink
from ingester.errors import OwnedElsewhere
from ingester.origins.origin_table import OriginTable
from ingester.origins.registry import Origins
from ingester.write.covered_rows import uncovered
from persist.manifest import PartitionKey
from persist.table import TableDefinition, TableKey

Shrink = Callable[[Operation, tuple[Part, ...]], None]


class OriginSink:
    """Judges sequences; a :class:`ingester.dml.DmlSink`.

    Args:
        shrink: leaves an operation with these parts alone, in its record for the log, too.
        definition_of: what a table is now.
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
        """Hand on what is new, answer what is not."""
        name, sequence = operation.origin, operation.origin_sequence
        if name is None or sequence is None:
            self._inner.submit(operation, answer)
            return
        lane = self._origins.lane(name, operation.table)
        if lane.lost:
            answer(operation, taken_away(name, operation.table))
            return
        verdict = lane.judge(sequence)
        if verdict == "duplicate":
            operation.duplicate = True
            answer(operation, None)
        elif verdict == "foreign":
            answer(operation, too_low(name, sequence))
        elif not lane.begin(sequence):
            lane.await_first(
                sequence, lambda error: self._after_first(lane, operation, answer, error)
            )
        else:
            lane.spec_id = operation.spec_id
            try:
                if ahead := lane.ahead_at(sequence):
                    self._leave_out(operation, sequence, ahead)
            except Exception as exc:
                self._end(lane, operation, answer, exc)
                return
            self._inner.submit(operation, lambda op, error: self._end(lane, op, answer, error))

    def _leave_out(
        self, operation: Operation, sequence: int, ahead: dict[PartitionKey, int]
    ) -> None:
        covered = frozenset(key for key, upto in ahead.items() if sequence <= upto)
        left = uncovered(
            operation.parts, operation.spec_id, covered, self._definition_of(operation.table)
        )
        if left != operation.parts:
            self._shrink(operation, left)
            operation.duplicate = not left

    def _after_first(
        self, lane: OriginTable, operation: Operation, answer: Answer, error: BaseException | None
    ) -> None:
        assert operation.origin_sequence is not None
        if error is None:
            operation.duplicate = True
            answer(operation, None)
        elif lane.missing is not None and operation.origin_sequence > lane.missing:
            answer(operation, error)
        else:
            self.submit(operation, answer)

    def _end(
        self, lane: OriginTable, operation: Operation, answer: Answer, error: BaseException | None
    ) -> None:
        assert operation.origin_sequence is not None
        waiting = lane.end(operation.origin_sequence, error)
        answer(operation, error)
        for fate in waiting:
            fate(error)


def taken_away(name: str, table: tuple[str, str]) -> OwnedElsewhere:
    """Why writes of an origin that moved away are refused."""
    return OwnedElsewhere(
        f"origin {name!r} writes to {table[0]}/{table[1]} through another daemon by now; a new"
        " stream here takes it back"
    )


def too_low(name: str, sequence: int) -> OwnedElsewhere:
    """Why a stream that goes back below where it began is refused."""
    return OwnedElsewhere(
        f"origin {name!r}: sequence {sequence} belongs to a daemon that had this origin before; a"
        " stream that begins there takes it over"
    )
