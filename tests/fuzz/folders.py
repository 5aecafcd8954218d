"""Folders with malformed files: a log, a table's manifest, a store with one data file."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import pyarrow as pa
import trio

from persist.manifest import Manifest, ManifestError
from persist.manifest.errors import ManifestDamaged
from persist.manifest.reading import list_tables
from persist.store import ObjectNotFound, ObjectStore, open_store
from persist.store.local import LocalStore
from persist.table import TableDefinition
from tests.fuzz import seeds
from tests.fuzz.sealing import sealed_segment
from tests.wal.driving import recovered_records
from wal import LogDamaged, LogTooNew
from wal.format import segment_name
from wal.inspection import inspect, repair, verify

_SCRATCH = Path("/dev/shm") if Path("/dev/shm").is_dir() else None


def log_folder(data: bytes) -> int:
    """A log whose middle or last segment is ``data``; read by the tools and by a start.

    The first byte selects the segment, and whether its checksums are made right.
    """
    how, body = (data[0], data[1:]) if data else (0, b"")
    good = seeds.segments()
    number = 1 + how % 2 * (len(good) - 1)
    if how & 2:
        body = sealed_segment(body, number)
    with tempfile.TemporaryDirectory(dir=_SCRATCH) as name:
        folder = Path(name)
        for at, segment in enumerate(good, 1):
            (folder / segment_name(at)).write_bytes(body if at == number else segment)
        facts = inspect(folder)
        findings = verify(folder)
        assert len(facts) == len(good)
        try:
            _, records = trio.run(recovered_records, folder)
        except LogTooNew:
            assert any(finding.severity == "newer" for finding in findings)
            return 0
        except LogDamaged:
            assert any(finding.severity == "damage" for finding in findings)
        else:
            assert all(finding.severity == "note" for finding in findings)
            return len(records)
        try:
            repair(folder)
        except LogTooNew:
            return 0
        _, records = trio.run(recovered_records, folder)  # a repaired log starts
        return len(records)


class _Overlaid(LocalStore):
    """A table's files with one of them replaced."""

    def __init__(self, root: Path, path: str, data: bytes) -> None:
        super().__init__(root)
        self._path, self._data = path, data

    def get(self, path: str) -> bytes:
        return self._data if path == self._path else super().get(path)


@cache
def _table_folder() -> Path:
    """Every file of the seed's table, built once per process."""
    folder = Path(tempfile.mkdtemp(dir=_SCRATCH, prefix="fuzz-"))
    store = open_store(f"file://{folder}")
    for path, data in seeds.manifest_files().items():
        store.put(path, data)
    return folder


def manifest_folder(data: bytes) -> int:
    """Replace one file by ``data``, selected by its first byte; read the table in every version."""
    how, body = (data[0], data[1:]) if data else (0, b"")
    paths = sorted(seeds.manifest_files())
    store = _Overlaid(_table_folder(), paths[how % len(paths)], body)
    got = 0
    for version in (None, 1, 2, 3, 4, 5):
        try:
            state = Manifest(store, *seeds.TABLE).load(version)
            got += state.file_count
        except ManifestError:
            continue
    try:
        got += len(list_tables(store))
        got += len(Manifest(store, *seeds.TABLE).changes(1, 5))
    except ManifestError:
        pass
    return got


def definition_of(store: ObjectStore) -> TableDefinition | None:
    """Return the newest version's definition; None where the manifest is damaged."""
    try:
        return TableDefinition.of_state(Manifest(store, *seeds.TABLE).load())
    except ManifestDamaged:
        return None


class _OneFile:
    """The part of a store that reading a data file needs."""

    url = "memory://one-file"

    def __init__(self, data: bytes) -> None:
        self._data = data

    def open(self, path: str) -> pa.NativeFile:
        if path != "file":
            raise ObjectNotFound(path)
        return pa.BufferReader(self._data)


def one_file_store(data: bytes) -> ObjectStore:
    """A store with ``data`` under the path ``file``."""
    return _OneFile(data)  # type: ignore[return-value]
