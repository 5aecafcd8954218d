"""Makes an operation of a received batch: checked, converted to its table, split, encoded.

All work per byte is done here, before the event loop, in the thread that has the batch. Whatever a
value can be refused for is refused here. Nothing waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ingester.dml.operation import Operation, OriginWrite, RowCounts
from ingester.dml.record import make_operation, table_rows
from ingester.errors import BadRequest
from ingester.origins.checkpoint_state import SourceCheckpoint
from ingester.schema import Normaliser
from ingester.schema.expansion import shown_bytes
from ingester.schema.normalise import validate_fully
from ingester.write.plan import WritePlan
from persist.manifest.actions import Content
from persist.partitioning import (
    PartitionedRows,
    PartitionValueTooLong,
    any_number,
    order_by_partition,
)

BODY_OVERHEAD_BYTES = 1 << 20
"""Bytes that the IPC form may have beside the values: padding, offsets, many columns."""


class Numbered(NamedTuple):
    """A batch's sequence of its stream's origin."""

    origin: str
    sequence: int
    notes_content: bool
    """Whether a repeat of the sequence has to have the same rows."""


class OperationMaker:
    """Makes operations. Any thread.

    Args:
        max_batch_bytes: ``flight.max_batch_bytes``.
    """

    def __init__(self, max_batch_bytes: int) -> None:
        self.max_batch_bytes = max_batch_bytes

    def make(
        self,
        plan: WritePlan,
        batch: pa.RecordBatch,
        numbered: Numbered | None = None,
        checkpoint: SourceCheckpoint | None = None,
        *,
        most_bytes: int | None = None,
        check: Callable[[int], None] = any_number,
    ) -> Operation:
        """Make an operation of one batch.

        Args:
            numbered: the batch's sequence, if it has one.
            most_bytes: the bytes that it has at most in any form, which are within the limits; None
                if they have to be counted.
            check: as in :meth:`ordered`.

        Raises:
            BadRequest: what is wrong with it.
        """
        kept = self._kept(plan.normaliser, batch, sized=most_bytes is not None)
        ordered = self._ordered(kept, plan.normaliser, check)
        rows = table_rows(plan.schema, plan.spec_id, ordered, most_bytes=most_bytes)
        stored = 0 if rows.message is None else rows.message.size
        if stored > self.max_batch_bytes + BODY_OVERHEAD_BYTES:
            raise BadRequest(
                f"batch has {stored} B once its dictionaries are decoded; flight.max_batch_bytes is"
                f" {self.max_batch_bytes}: send smaller batches"
            )
        if numbered is None:
            return make_operation(rows, checkpoint=checkpoint)
        content = None
        if numbered.notes_content and plan.schema.contents is not None:
            # That of rows which were ordered by partition is not that of the rows as they came.
            message = rows.message if len(rows.parts) == 1 else plan.schema.template.message(kept)
            content = plan.schema.contents.content(kept, message)
        origin = numbered.origin, numbered.sequence
        return make_operation(rows, origin=origin, checkpoint=checkpoint, content=content)

    def coalesce(
        self,
        plan: WritePlan,
        batches: list[pa.RecordBatch],
        most_bytes: int,
        numbered: Sequence[Numbered | None] = (),
    ) -> Operation:
        """Make a coalesced batch of small batches of one schema, each with its own sequence.

        Args:
            most_bytes: the bytes that all of them have at most; none has more than a batch may.
            numbered: the origin's sequence of each batch.

        Raises:
            BadRequest, pa.ArrowException: not all of them are good; which one is not said.
        """
        counts = [batch.num_rows for batch in batches]
        validate_fully(batches)
        kept = plan.normaliser(pa.concat_batches(batches))
        ordered = order_by_partition(kept, plan.normaliser.definition.spec)
        rows = table_rows(
            plan.schema,
            plan.spec_id,
            ordered,
            owned=len(batches) > 1,
            most_bytes=most_bytes,
            row_counts=_row_counts(ordered, counts),
        )
        contents: Sequence[Content | None] = [None] * len(batches)
        if plan.schema.contents is not None and any(one and one.notes_content for one in numbered):
            contents = plan.schema.contents.contents(kept, counts)
        writes = tuple(
            OriginWrite(number, one.origin, one.sequence, content if one.notes_content else None)
            for number, (one, content) in enumerate(zip(numbered, contents, strict=False))
            if one is not None
        )
        return make_operation(rows, operations=len(batches), writes=writes)

    def check_size(self, batch: pa.RecordBatch) -> None:
        """Raise ``BadRequest`` for a batch that is too large as it arrived."""
        if (nbytes := batch.get_total_buffer_size()) > self.max_batch_bytes:
            raise BadRequest(
                f"batch has {nbytes} B; flight.max_batch_bytes is {self.max_batch_bytes}:"
                " send smaller batches"
            )

    def check_valid(self, batch: pa.RecordBatch) -> None:
        """Raise ``BadRequest`` for a batch whose buffers are not valid Arrow."""
        try:
            validate_fully([batch])
        except pa.ArrowInvalid as exc:
            raise _not_valid(exc) from exc

    def ordered(
        self,
        normalise: Normaliser,
        batch: pa.RecordBatch,
        check: Callable[[int], None] = any_number,
    ) -> PartitionedRows:
        """Order a batch by partition, with the columns and types of its table.

        Args:
            check: receives the number of partitions, if there are several, before the batch is
                ordered: each costs as much as many rows. It may raise.

        Raises:
            BadRequest: what is wrong with it.
        """
        return self._ordered(self._kept(normalise, batch), normalise, check)

    def _ordered(
        self, rows: pa.RecordBatch, normalise: Normaliser, check: Callable[[int], None]
    ) -> PartitionedRows:
        try:
            return order_by_partition(rows, normalise.definition.spec, check=check)
        except PartitionValueTooLong as exc:
            raise BadRequest(str(exc)) from exc
        except pa.ArrowInvalid as exc:
            raise _not_valid(exc) from exc

    def _kept(
        self, normalise: Normaliser, batch: pa.RecordBatch, *, sized: bool = False
    ) -> pa.RecordBatch:
        """Convert a batch to the columns and types of its table.

        Args:
            sized: whether its size is known to be within the limits.
        """
        if not sized:
            self.check_size(batch)
        try:
            if normalise.shows_text:
                self._check_shown_bytes(batch)
            self.check_valid(batch)
            if not sized:
                self._check_plain_bytes(normalise, batch)
            return normalise(batch)
        except pa.ArrowInvalid as exc:
            raise _not_valid(exc) from exc

    def _check_plain_bytes(self, normalise: Normaliser, batch: pa.RecordBatch) -> None:
        """Refuse few bytes that expand to too many; see :mod:`ingester.schema.expansion`."""
        self._check_written_out(batch, normalise.plain_bytes(batch, enough=self.max_batch_bytes))

    def _check_shown_bytes(self, batch: pa.RecordBatch) -> None:
        """Refuse views that all show the same text before their contents are validated."""
        batch.validate()
        self._check_written_out(batch, sum(map(shown_bytes, batch.columns)))

    def _check_written_out(self, batch: pa.RecordBatch, nbytes: float) -> None:
        limit = self.max_batch_bytes
        if nbytes > limit + BODY_OVERHEAD_BYTES:
            raise BadRequest(
                f"batch of {batch.num_rows} rows has {nbytes:.0f} B once its dictionaries, views"
                f" and nulls are written out; flight.max_batch_bytes is {limit}: send smaller"
                " batches"
            )


def _not_valid(exc: pa.ArrowInvalid) -> BadRequest:
    return BadRequest(f"batch is not valid: {exc}")


def _row_counts(ordered: PartitionedRows, counts: list[int]) -> list[RowCounts]:
    """Count each operation's rows in each partition of a coalesced batch."""
    if len(ordered.values) < 2:
        return [tuple((n, count) for n, count in enumerate(counts) if count)] * len(ordered.values)
    whose = np.repeat(np.arange(len(counts)), counts)
    if ordered.order is not None:
        whose = whose[ordered.order]
    # A run is the rows of one operation in one partition: they are in the order of operations.
    begins = np.union1d(ordered.starts[:-1], np.flatnonzero(whose[1:] != whose[:-1]) + 1)
    lengths = np.diff(begins, append=len(whose))
    runs = list(zip(whose[begins].tolist(), lengths.tolist(), strict=True))
    ends = np.searchsorted(begins, ordered.starts).tolist()
    return [tuple(runs[first:end]) for first, end in pairwise(ends)]
