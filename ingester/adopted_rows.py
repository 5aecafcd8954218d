"""Buffers whose rows somebody else may have put into files: those that replay has filled.

    replayed buffer ──freeze──▶ persisted, finds its rows in files ──▶ released, version installed

An operation of an earlier epoch may stand in another log, too: that of a copy of the data
directory. When that one is adopted, a manifest version has rows that a buffer here still holds.

Law of this file: such a version is installed only together with the release of every buffer that it
has rows of. Until then answers come from the version before, so no row is seen twice. Loop only.
"""

from __future__ import annotations

from collections.abc import Collection

from ingester.buffer import BufferHandle, BufferTree, TableBuffer
from persist.manifest import TableState


class AdoptedRows:
    """Knows the buffers that replay has filled, until they are released."""

    def __init__(self, tree: BufferTree, ingester_id: str) -> None:
        self._tree = tree
        self._ingester_id = ingester_id
        self._replayed: dict[TableBuffer, set[BufferHandle]] = {}

    def note_replayed(self, handle: BufferHandle) -> None:
        """The buffer has operations that other logs may have."""
        self._replayed.setdefault(handle.partition.table, set()).add(handle)

    def freeze_behind(
        self, table: TableBuffer, state: TableState, besides: Collection[BufferHandle] = ()
    ) -> list[BufferHandle]:
        """The buffers that keep a version from being installed; they are on their way now.

        Args:
            besides: those that are released with it.
        """
        known = self._replayed.get(table)
        if known is None:
            return []
        known -= {handle for handle in known if handle.released}
        if not known:
            del self._replayed[table]
        behind = [h for h in known if h not in besides and self._has_rows_of(state, h)]
        for handle in behind:
            if not handle.frozen:
                self._tree.freeze(handle.partition)
        return behind

    def _has_rows_of(self, state: TableState, handle: BufferHandle) -> bool:
        spec_id, values = handle.partition.key
        upto = state.applied_to(self._ingester_id, handle.epoch, spec_id, values)
        return upto >= handle.first_seq
