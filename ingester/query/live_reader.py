"""The rows of a follower's answer, one part after another, group by group.

Law of this file: between two parts of a keyless table nothing is held but a position; in a keyed
one what :mod:`ingester.query.merge_reader` holds of one group, too. A buffer that is gone meanwhile
ends the answer: nothing of it counts. Runs in the gRPC thread that asks for the next part.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

import pyarrow as pa

from ingester.buffer import BufferedRows, BufferHandle
from ingester.errors import StaleVersion
from ingester.query.cpu_account import CpuAccount
from ingester.query.live_groups import Group
from ingester.query.live_tail import LiveSnapshot
from ingester.query.merge_reader import MergeReader
from ingester.query.parts import rows_at
from ingester.query.read_context import AnswerPart, ReadContext, Selection
from ingester.query.row_group_cache import RowGroupCache
from persist.partitioning import folder_of


class LiveReader:
    """Reads a selection of a follower's answer; an :class:`ingester.query.stream.Reader`.

    Args:
        rows_of: gives the rows of a buffer, released or not; None where they are gone.
    """

    def __init__(
        self,
        snapshot: LiveSnapshot,
        selection: Selection,
        row_groups: RowGroupCache,
        rows_of: Callable[[BufferHandle], BufferedRows | None],
        account: CpuAccount,
    ) -> None:
        self.selection = selection
        self.snapshot = snapshot
        self.scheduler = row_groups.scheduler
        self.account = account
        self._groups = snapshot.groups
        self._context = ReadContext(snapshot.definition, selection, row_groups, "", account)
        self._rows_of = rows_of

    def parts(self) -> Generator[AnswerPart, None, None]:
        """Give all parts with at least one row."""
        definition = self.snapshot.definition
        merged = MergeReader(self._context) if definition.keyed else None
        for group in self._groups:
            spec_id, values = group.handle.partition
            name = folder_of(definition.spec_of(spec_id), values)
            parts = (
                self._parts(group, name)
                if merged is None
                else merged.changes(self._batches(group), name)
            )
            for part in parts:
                yield part._replace(group=group)
                self._context.pace.restart()

    def let_go(self) -> None:
        """Let go of the last part: nobody wants it any more."""
        self._context.slicer.let_go()

    def _parts(self, group: Group, name: str) -> Iterator[AnswerPart]:
        row = group.begin
        while row < group.end:
            chunks = self._rows(group).chunks()
            rows, piece = self._context.slicer.buffered(chunks, row, group.end)
            del chunks
            row += rows
            if piece.batch.num_rows:
                yield AnswerPart(piece.batch, name, "buffer", piece.nbytes)
            else:
                self._context.pace.let_others()

    def _batches(self, group: Group) -> Iterator[pa.RecordBatch]:
        row = group.begin
        while row < group.end:
            batch = rows_at(self._rows(group).chunks(), row, group.end)
            row += batch.num_rows
            yield batch

    def _rows(self, group: Group) -> BufferedRows:
        rows = self._rows_of(group.handle)
        if rows is None:
            version = self.snapshot.version
            raise StaleVersion(
                f"operations {group.first_seq} to {group.last_seq} went into files while this"
                " answer was read, and are kept no longer (query.tail_retain); drop it, load the"
                " newest version and ask again",
                retry_after_s=0.0,
                details={"manifest_version": version, "version": version, "anew": False},
            )
        return rows
