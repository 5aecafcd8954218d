"""Whether the files of a push are in a region's store as they were written.

    one listing: there, and as large ─▶ each footer: its checksum, and its rows

Law of this file: it goes on for a while and no longer, remembers which files it has found whole,
and takes none for whole that it has not seen.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from ingester.pushes.store_region.pushed_files import PushedFile
from persist.parquet.reading import DataFile, FileDamaged, read_footer
from persist.store import NotFound, ObjectInfo, ObjectStore

SLICE_S = 20.0
"""One call goes on for so long: whoever waits for its end may have to abort the push."""
_READERS = 8


class FileFault(Exception):
    """A file is missing, or is not what was written; the message names it."""

    def __init__(self, file: PushedFile, what: str) -> None:
        super().__init__(what)
        self.file = file


def files_there(store: ObjectStore, root: str) -> dict[str, ObjectInfo]:
    """Return the files below the folder of a table version, by their paths below it."""
    found = store.list(f"{root}/data/")
    return {info.path.removeprefix(f"{root}/"): info for info in found}


class DataCheck:
    """The files of one push in one region that were found whole. One thread."""

    def __init__(self, slice_s: float = SLICE_S) -> None:
        self._slice_s = slice_s
        self._whole: set[str] = set()

    def all_whole(
        self,
        store: ObjectStore,
        root: str,
        files: Sequence[PushedFile],
        there: Mapping[str, ObjectInfo],
    ) -> bool:
        """Return whether each of the files is whole, False where there was no time for some.

        Raises:
            FileFault: one is missing, or damaged.
            StoreError: the store does not give one of them.
        """
        for file in files:
            check_size(file, there)
        left = [file for file in files if file.path not in self._whole]
        until = time.monotonic() + self._slice_s
        with ThreadPoolExecutor(_READERS, thread_name_prefix="check") as pool:
            for batch in _batches(left, 4 * _READERS):
                if time.monotonic() >= until:
                    return False
                for path in pool.map(partial(_check_footer, store, root), batch):
                    self._whole.add(path)
        return True


def check_size(file: PushedFile, there: Mapping[str, ObjectInfo]) -> None:
    """Raise :class:`FileFault` unless the file is there, as large as it was written."""
    info = there.get(file.path)
    if info is None:
        raise FileFault(file, f"file {file.path} is missing")
    if info.bytes != file.bytes:
        what = f"file {file.path} has {info.bytes} bytes, and should have {file.bytes}"
        raise FileFault(file, what)


def _check_footer(store: ObjectStore, root: str, file: PushedFile) -> str:
    path = f"{root}/{file.path}"
    try:
        with store.open(path) as source:
            footer = read_footer(source, DataFile(path, file.bytes, file.footer_crc32c))
    except (FileDamaged, NotFound) as exc:
        raise FileFault(file, str(exc)) from exc
    if footer.num_rows != file.rows:
        what = f"file {path} has {footer.num_rows} rows, and should have {file.rows}"
        raise FileFault(file, what)
    return file.path


def _batches(files: Sequence[PushedFile], size: int) -> Iterable[Sequence[PushedFile]]:
    return (files[at : at + size] for at in range(0, len(files), size))
