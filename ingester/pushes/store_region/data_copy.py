"""Files of a push, from a region that has them into one that does not.

Law of this file: the same bytes under the same path, checked on their way; a file that is there at
its full size is left alone, so that a copy goes on where another one ended. It goes on for a while
and no longer. A file that was found damaged is written anew, over the damaged one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pyarrow as pa

from ingester.pushes.store_region.data_check import SLICE_S
from ingester.pushes.store_region.pushed_files import PushedFile
from persist.parquet.reading import FileDamaged, footer_checksum
from persist.store import NotFound, ObjectInfo, ObjectStore, StoreError

_COPIERS = 2
"""So many files are in memory at a time, each of some 128 MB."""


class SourceFault(Exception):
    """The region that has the data does not give a file as it was written."""


class SourceAway(SourceFault):
    """It does not answer, and may have the file whole."""


class Place(NamedTuple):
    """The folder of a table version in a store."""

    store: ObjectStore
    root: str


def copy_missing(
    source: Place,
    target: Place,
    files: Sequence[PushedFile],
    there: Mapping[str, ObjectInfo],
    slice_s: float = SLICE_S,
) -> bool:
    """Copy the files that the target lacks; return False where there was no time for some.

    Args:
        there: What the target has, by the paths below its folder.

    Raises:
        SourceFault: the source is away, or its file is damaged.
        StoreError: the target does not take a file.
    """
    missing = [file for file in files if not _is_there(file, there)]
    until = time.monotonic() + slice_s

    def copy(file: PushedFile) -> bool:
        if time.monotonic() >= until:
            return False
        target.store.put(f"{target.root}/{file.path}", _read(source, file))
        return True

    with ThreadPoolExecutor(_COPIERS, thread_name_prefix="copy") as pool:
        return all(list(pool.map(copy, missing)))


def fetch_again(sources: Iterable[Place], target: Place, file: PushedFile) -> bool:
    """Write a file anew from the first source that has it whole; return False where none has.

    Raises:
        SourceAway: none of those that answer has it whole, and another one may.
        StoreError: the target does not take it.
    """
    away: SourceAway | None = None
    for source in sources:
        try:
            data = _read(source, file)
        except SourceAway as exc:
            away = exc
        except SourceFault:
            continue
        else:
            target.store.put(f"{target.root}/{file.path}", data)
            return True
    if away is not None:
        raise away
    return False


def _is_there(file: PushedFile, there: Mapping[str, ObjectInfo]) -> bool:
    info = there.get(file.path)
    return info is not None and info.bytes == file.bytes


def _read(source: Place, file: PushedFile) -> bytes:
    path = f"{source.root}/{file.path}"
    try:
        data = source.store.get(path)
        found = footer_checksum(pa.py_buffer(data))
    except (NotFound, FileDamaged) as exc:
        raise SourceFault(f"{source.store.url}: {exc}") from exc
    except StoreError as exc:
        raise SourceAway(f"{source.store.url}: {exc}") from exc
    if len(data) != file.bytes or file.footer_crc32c not in (None, found):
        raise SourceFault(f"{source.store.url}: file {path} is not what was written")
    return data
