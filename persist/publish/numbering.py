"""Numbers a table's versions so that they rise by one, also over switches of the table version.

    v1   1 … 99  100 sealed │                 │ 101 = rolled back, 102 …
    v2              1 … 4   │ 5 … 49 50 sealed│
    number      99  100       101 … 145  146    147, 148 …

A manifest version's number is its version plus an offset. In a table that was never switched the
offset is 0. The offset after a switch follows from the manifests: the first version after it comes
right after the seal before it. It is recorded once in ``_published/<switch>``, because the
manifests of old table versions are deleted eventually. If they were deleted before the offset was
recorded, it leaves a wide gap, so that no number is ever used twice
(tests/persist/publish/test_numbering.py).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from persist.manifest import (
    Imported,
    Manifest,
    ManifestDamaged,
    TableNotFound,
    TableState,
    VersionNotKept,
)
from persist.manifest.paths import numbered, published_folder
from persist.publish.steps import Place
from persist.store import AlreadyExists, ObjectNotFound, ObjectStore

GAP = 1_000_000
"""The distance to the highest published number if the versions in between are not known."""
_UNKNOWN = (TableNotFound, VersionNotKept, ManifestDamaged)


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The offset of the versions that follow a switch."""

    switch: int
    table_version: int
    offset: int


class Numbering:
    """The numbers of one table. Remembers the offsets that it has seen."""

    def __init__(self, store: ObjectStore, namespace: str, table: str) -> None:
        self._store, self._namespace, self._table = store, namespace, table
        self._folder = published_folder(namespace, table)
        self._offsets = {0: 0}

    def place(self, state: TableState, highest: Callable[[], int]) -> Place:
        """The place of a state.

        Args:
            highest: returns the highest number published so far in any format, 0 if none; called
                only if the versions since then are not known.

        Raises:
            ManifestDamaged: a record of an offset cannot be read.
            StoreError: the store cannot be read or written.
        """
        number = state.version + self._offset(state, highest)
        return Place(number, state.table_version, state.version, state.uid)

    def _offset(self, state: TableState, highest: Callable[[], int]) -> int:
        switch = period(state)
        if switch not in self._offsets:
            found = self._read(switch)
            if found is None:
                record = _Record(switch, state.table_version, self._made(state, highest))
                found = self._create(record)
            self._offsets[switch] = found.offset
        return self._offsets[switch]

    def _made(self, state: TableState, highest: Callable[[], int]) -> int:
        came = arrival(state)
        assert came is not None  # only a period after a switch has no offset yet
        try:
            before = self._sealed_state(came, period(state) - 1)
            sealed = came.manifest_version + self._offset(before, highest)
        except _UNKNOWN:
            published = highest()
            sealed = published + GAP if published else came.into - 1
        return sealed + 1 - came.into

    def _sealed_state(self, came: Imported, switch: int) -> TableState:
        """The state of the table version that was current before, in its last period."""
        manifest = Manifest(self._store, self._namespace, self._table, came.table_version)
        state = manifest.load(came.manifest_version)
        if state.uid != came.uid or period(state) != switch:
            raise VersionNotKept(came.manifest_version, came.manifest_version + 1, state.version)
        return state

    def _read(self, switch: int) -> _Record | None:
        path = numbered(self._folder, switch)
        try:
            return msgspec.json.decode(self._store.get(path), type=_Record)
        except ObjectNotFound:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise ManifestDamaged(path, 0, "", f"it is no offset of versions: {exc}") from exc

    def _create(self, record: _Record) -> _Record:
        path = numbered(self._folder, record.switch)
        try:
            self._store.create(path, msgspec.json.encode(record))
        except AlreadyExists:
            found = self._read(record.switch)
            assert found is not None  # records are never deleted
            return found
        return record


def period(state: TableState) -> int:
    """The number of the switch that made the state's table version current; 0 if none did."""
    return state.place[0]


def arrival(state: TableState) -> Imported | None:
    """The import with which the table version of a state became current; None if none did."""
    imports = sorted(state.imports.values(), key=lambda each: each.switch)
    return imports[-1] if imports else None
