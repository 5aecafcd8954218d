"""The data of a push in one region: checked, committed, or copied from another region.

    files in the store         ─▶ commit: one commit
    committed                  ─▶ is_whole: each file as it was written, and all rows
    committed elsewhere        ─▶ taken: copied, checked, committed
    a file is damaged          ─▶ fetched once more from a region that has it whole

    one listing: exists, right size ─▶ each footer: its checksum, and its rows

No missing file is ever committed, and copies are checked first (tests/pushes/test_region_faults).
Files are the same bytes under the same path in every region; a copy resumes with the files that are
missing. Each call works for ``slice_s`` at most, and is repeated for the rest.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from ingester.pushes.regions.generation import PushedGeneration
from ingester.pushes.regions.shapes import PushedFile, ShapeClash, clash
from ingester.pushes.tasks import RegionFailed, RegionUnreachable
from persist.manifest import TableState
from persist.parquet.reading import DataFile, FileDamaged, footer_checksum, read_footer
from persist.store import ObjectInfo, ObjectNotFound, ObjectStore, StoreError
from persist.table import TableDefinition

SLICE_S = 20.0
"""The time limit of one call: its caller may have to abort the push."""
_READERS = 8
_COPIERS = 2
"""The number of files in memory at the same time, about 128 MB each."""


class GenerationFolder(NamedTuple):
    """The folder of a generation in a store."""

    store: ObjectStore
    root: str


class RegionData:
    """The data of one push in one region. Not thread-safe; remembers which files are whole."""

    def __init__(self, version: PushedGeneration, slice_s: float) -> None:
        self._version = version
        self._slice_s = slice_s
        self._check = DataCheck(slice_s)
        self._fetched: set[str] = set()

    def commit(self, files: Sequence[PushedFile]) -> None:
        """Commit all files at once, unless the data is committed.

        Raises:
            RegionFailed: a file is missing or was written for another shape; nothing is committed.
        """
        version = self._version
        version.check_not_given_up()
        state = version.made()
        if version.rows(state) is not None:
            return
        found = files_of(version.store, version.root)
        try:
            for file in files:
                check_size(file, found)
            timed = [(file, found[file.path].at.isoformat()) for file in files]
            version.commit_data(state, timed)
        except (FileFault, ShapeClash) as exc:
            raise RegionFailed(str(exc)) from exc

    def is_whole(self, state: TableState, rows: int, others: Iterable[GenerationFolder]) -> bool:
        """Return whether all committed files are whole; False if some are still unchecked.

        Args:
            others: the push's folders in other regions, read only for a damaged file.

        Raises:
            RegionFailed: a file is missing or damaged in every region, or rows are missing.
            RegionUnreachable: it is damaged here, and a region that may have it is unreachable.
        """
        files = [PushedFile.of(add) for add in self._version.files(state)]
        return self._are_whole(files, rows, others)

    def taken(
        self,
        state: TableState,
        source: PushedGeneration,
        its: TableState,
        others: Iterable[GenerationFolder],
    ) -> bool:
        """Return whether the data was copied from another region; False if it cannot be, or if more
        is left to copy.

        Args:
            state, its: the generation here and in the source, where the data is committed.
            others: as for :meth:`is_whole`.

        Raises:
            RegionFailed: the tables of the two regions differ, or a local file is damaged in every
                region.
            RegionUnreachable: as for :meth:`is_whole`.
        """
        version, rows = self._version, source.rows(its)
        assert rows is not None
        reason = clash(TableDefinition.of_state(its), TableDefinition.of_state(state))
        if reason is not None:
            raise RegionFailed(f"the tables of another region and of this one differ: {reason}")
        files = [PushedFile.of(add) for add in source.files(its)]
        found = files_of(version.store, version.root)
        origin = GenerationFolder(source.store, source.root)
        target = GenerationFolder(version.store, version.root)
        try:
            if not copy_missing(origin, target, files, found, self._slice_s):
                return False
        except SourceFault:
            return False  # a third region may have it whole
        if not self._are_whole(files, rows, others):
            return False
        self.commit(files)
        return True

    def _are_whole(
        self, files: Sequence[PushedFile], rows: int, others: Iterable[GenerationFolder]
    ) -> bool:
        found = sum(file.rows for file in files)
        if found != rows:
            raise RegionFailed(f"the files of the push have {found} rows instead of {rows}")
        store, root = self._version.store, self._version.root
        try:
            return self._check.all_whole(store, root, files, files_of(store, root))
        except FileFault as exc:
            if not self._fetch(exc, others):
                raise RegionFailed(str(exc)) from exc
            return False  # the fetched file is checked as well

    def _fetch(self, fault: FileFault, others: Iterable[GenerationFolder]) -> bool:
        """Replace a damaged file by a whole one from another region.

        Returns:
            False if no region has one, or the file was fetched before: this store damages it.
        """
        path = fault.file.path
        if path in self._fetched:
            return False
        here = GenerationFolder(self._version.store, self._version.root)
        try:
            found = fetch_again(others, here, fault.file)
        except SourceUnreachable as exc:
            raise RegionUnreachable(
                f"{fault}, and a region that may have it is unreachable: {exc}"
            ) from exc
        self._fetched.add(path)
        return found


class FileFault(Exception):
    """A file is missing or damaged; the message names it."""

    def __init__(self, file: PushedFile, what: str) -> None:
        super().__init__(what)
        self.file = file


def files_of(store: ObjectStore, root: str) -> dict[str, ObjectInfo]:
    """Return the files of a generation, by their paths relative to its folder."""
    found = store.list(f"{root}/data/")
    return {info.path.removeprefix(f"{root}/"): info for info in found}


class DataCheck:
    """Checks the files of one push in one region, each once. Not thread-safe."""

    def __init__(self, slice_s: float = SLICE_S) -> None:
        self._slice_s = slice_s
        self._whole: set[str] = set()

    def all_whole(
        self,
        store: ObjectStore,
        root: str,
        files: Sequence[PushedFile],
        found: Mapping[str, ObjectInfo],
    ) -> bool:
        """Return whether all files are whole; False if the time was too short.

        Raises:
            FileFault: a file is missing or damaged.
            StoreError: a file cannot be read.
        """
        for file in files:
            check_size(file, found)
        left = [file for file in files if file.path not in self._whole]
        until = time.monotonic() + self._slice_s
        with ThreadPoolExecutor(_READERS, thread_name_prefix="check") as pool:
            for batch in _batches(left, 4 * _READERS):
                if time.monotonic() >= until:
                    return False
                for path in pool.map(partial(_check_footer, store, root), batch):
                    self._whole.add(path)
        return True


def check_size(file: PushedFile, found: Mapping[str, ObjectInfo]) -> None:
    """Raise :class:`FileFault` unless the file exists with its size."""
    info = found.get(file.path)
    if info is None:
        raise FileFault(file, f"file {file.path} is missing")
    if info.bytes != file.bytes:
        what = f"file {file.path} has {info.bytes} bytes instead of {file.bytes}"
        raise FileFault(file, what)


def _check_footer(store: ObjectStore, root: str, file: PushedFile) -> str:
    path = f"{root}/{file.path}"
    try:
        with store.open(path) as source:
            footer = read_footer(source, DataFile(path, file.bytes, file.footer_crc32c))
    except (FileDamaged, ObjectNotFound) as exc:
        raise FileFault(file, str(exc)) from exc
    if footer.num_rows != file.rows:
        what = f"file {path} has {footer.num_rows} rows instead of {file.rows}"
        raise FileFault(file, what)
    return file.path


def _batches(files: Sequence[PushedFile], size: int) -> Iterable[Sequence[PushedFile]]:
    return (files[at : at + size] for at in range(0, len(files), size))


class SourceFault(Exception):
    """A region does not have a file whole."""


class SourceUnreachable(SourceFault):
    """The region does not answer; it may have the file whole."""


def copy_missing(
    source: GenerationFolder,
    target: GenerationFolder,
    files: Sequence[PushedFile],
    found: Mapping[str, ObjectInfo],
    slice_s: float = SLICE_S,
) -> bool:
    """Copy the files that the target lacks; return False if the time was too short.

    Args:
        found: the target's files, by path.

    Raises:
        SourceFault: the source is unreachable, or its file is damaged.
        StoreError: the target refuses a file.
    """
    missing = [file for file in files if not _exists(file, found)]
    until = time.monotonic() + slice_s

    def copy(file: PushedFile) -> bool:
        if time.monotonic() >= until:
            return False
        target.store.put(f"{target.root}/{file.path}", _read(source, file))
        return True

    with ThreadPoolExecutor(_COPIERS, thread_name_prefix="copy") as pool:
        return all(list(pool.map(copy, missing)))


def fetch_again(
    sources: Iterable[GenerationFolder], target: GenerationFolder, file: PushedFile
) -> bool:
    """Copy a file from the first source that has it whole; return False if none has.

    Raises:
        SourceUnreachable: only sources that do not answer may have it.
        StoreError: the target refuses it.
    """
    unreachable: SourceUnreachable | None = None
    for source in sources:
        try:
            data = _read(source, file)
        except SourceUnreachable as exc:
            unreachable = exc
        except SourceFault:
            continue
        else:
            target.store.put(f"{target.root}/{file.path}", data)
            return True
    if unreachable is not None:
        raise unreachable
    return False


def _exists(file: PushedFile, found: Mapping[str, ObjectInfo]) -> bool:
    info = found.get(file.path)
    return info is not None and info.bytes == file.bytes


def _read(source: GenerationFolder, file: PushedFile) -> bytes:
    path = f"{source.root}/{file.path}"
    try:
        data = source.store.get(path)
        found = footer_checksum(pa.py_buffer(data))
    except (ObjectNotFound, FileDamaged) as exc:
        raise SourceFault(f"{source.store.url}: {exc}") from exc
    except StoreError as exc:
        raise SourceUnreachable(f"{source.store.url}: {exc}") from exc
    if len(data) != file.bytes or file.footer_crc32c not in (None, found):
        raise SourceFault(f"{source.store.url}: file {path} is damaged")
    return data
