"""Buffers whose rows somebody else may have put into files.

    replayed buffer ──freeze──▶ persisted, finds its rows in files ──▶ released, version installed

An operation of an earlier epoch, which replay has brought here, may stand in another log, too: that
of a copy of the data directory. When that one is adopted, a manifest version has rows that a buffer
here still holds. So may a version that another daemon made which has taken over an origin.

Law of this file: such a version is installed only together with the release of every buffer that it
has rows of. Until then answers come from the version before, so no row is seen twice. The commit
of a keyed table's flush does not ask here: adoption refuses such rows of one. Loop only.
"""

from __future__ import annotations

from collections.abc import Collection

from ingester.buffer import BufferHandle, BufferTree, TableBuffer
from ingester.errors import StoreAway
from ingester.tables.origin_claims import OriginClaims
from persist.manifest import TableState


class VersionOverlap:
    """Knows the buffers that replay has filled, until they are released."""

    def __init__(self, tree: BufferTree, ingester_id: str, claims: OriginClaims) -> None:
        self._tree = tree
        self._claims = claims
        self._ingester_id = ingester_id
        self._replayed: dict[TableBuffer, set[BufferHandle]] = {}

    def note_replayed(self, table: TableBuffer, handle: BufferHandle) -> None:
        """Note a buffer of the table with operations that other logs may have."""
        self._replayed.setdefault(table, set()).add(handle)

    def freeze_behind(
        self, table: TableBuffer, state: TableState, besides: Collection[BufferHandle] = ()
    ) -> list[BufferHandle]:
        """Freeze and return the buffers that keep a version from being installed.

        Args:
            besides: the buffers that are released with it.
        """
        behind = [h for h in self._replayed_into(table) if self._has_rows_of(state, h)]
        if state.origins is not table.state.origins:
            lost = self._claims.lost_rows(table, state)
            behind += [handle for handle in lost if handle not in behind]
        behind = [handle for handle in behind if handle not in besides]
        for handle in behind:
            if not handle.frozen:
                self._tree.freeze(table.partitions[handle.partition])
        return behind

    def _replayed_into(self, table: TableBuffer) -> list[BufferHandle]:
        known = self._replayed.get(table)
        if known is None:
            return []
        known -= {handle for handle in known if handle.released}
        if not known:
            del self._replayed[table]
        return list(known)

    def _has_rows_of(self, state: TableState, handle: BufferHandle) -> bool:
        spec_id, values = handle.partition
        upto = state.applied_to(self._ingester_id, handle.epoch, spec_id, values)
        return upto >= handle.first_seq


def held_back(table: TableBuffer) -> StoreAway:
    """The error that says why a version of others cannot be shown yet."""
    return StoreAway(
        f"table {table.namespace}/{table.name}: its newest version has rows that are still being"
        " persisted here, too; ask again",
        retry_after_s=0.5,
    )
