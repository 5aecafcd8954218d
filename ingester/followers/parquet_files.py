"""The files of a Parquet folder: rows, and in the footer which rows are of which group.

Law of this file: a file has the user's columns and no others, and is never changed. The footer's
key ``ingester.runs`` says, in the order of the rows, ``[partition, group, rows]``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ingester.followers.sink import Run

RUNS = b"ingester.runs"
SMALL_BYTES = 16 << 20
"""A file below this is merged with others of its kind."""
MANY_FILES = 32
"""So many small files are merged into one."""
MERGED_BYTES = 64 << 20
"""The files that are merged at once have no more together: their rows are in memory."""
MANY_RUNS = 10_000
"""A file of more runs is merged no more: its footer would be the larger part of it."""

_decode = msgspec.json.Decoder(list[tuple[str, int, int]]).decode


def write_rows(path: Path, rows: pa.Table, runs: Sequence[Run]) -> None:
    """Make a file of these rows, on disk when this returns."""
    metadata = {**(rows.schema.metadata or {}), RUNS: msgspec.json.encode(joined(runs))}
    pq.write_table(rows.replace_schema_metadata(metadata), path, compression="zstd")
    sync(path)


def joined(runs: Iterable[Run]) -> list[Run]:
    """The runs, neighbours of one group as one."""
    together = groupby(runs, key=lambda run: (run.part, run.at))
    return [Run(part, at, sum(r.rows for r in same)) for (part, at), same in together]


def runs_of(path: Path) -> list[Run]:
    """What a file's rows are of, in their order."""
    return [Run(*run) for run in _decode(pq.read_metadata(path).metadata[RUNS])]


def without(path: Path, goes: Callable[[Run], bool]) -> tuple[pa.Table, list[Run]] | None:
    """A file's rows and runs less those that go; None where all stay."""
    runs = runs_of(path)
    if not any(map(goes, runs)):
        return None
    rows = pq.ParquetFile(path).read()
    stays = [run for run in runs if not goes(run)]
    pieces = [rows.slice(first, run.rows) for first, run in _placed(runs) if not goes(run)]
    return pa.concat_tables(pieces) if pieces else rows.slice(0, 0), stays


def _placed(runs: Sequence[Run]) -> Iterator[tuple[int, Run]]:
    """Each run with the number of its first row."""
    first = 0
    for run in runs:
        yield first, run
        first += run.rows


def to_merge(files: Sequence[Path]) -> list[Path]:
    """The files that are to become one; none as long as they are few."""
    sizes = {path: path.stat().st_size for path in files}
    small = [path for path in files if sizes[path] < SMALL_BYTES]
    if len(small) < MANY_FILES:
        return []
    taken, room = [], MERGED_BYTES
    for path in sorted(small, key=lambda path: sizes[path]):
        room -= sizes[path]
        if room < 0:
            break
        if len(runs_of(path)) <= MANY_RUNS:
            taken.append(path)
    return taken if len(taken) > 1 else []


def merged(files: Sequence[Path]) -> tuple[pa.Table, list[Run]]:
    """The rows and runs of several files; columns that one lacks are null there."""
    tables = [pq.ParquetFile(path).read() for path in files]
    rows = pa.concat_tables(
        [table.replace_schema_metadata(None) for table in tables], promote_options="default"
    )
    return rows, [run for path in files for run in runs_of(path)]


def sync(path: Path) -> None:
    """Have a file's bytes, or a folder's entries, on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
