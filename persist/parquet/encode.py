"""Encodes sorted rows as Parquet files, with the facts that the manifest records about them.

zstd, dictionaries where they pay, statistics and page index except for leaves that contain a NaN,
page checksums, row groups of 128 Ki rows (fewer if rows are wide); nanoseconds only if the table
asks for them. A file has all columns of its table, also those that none of its rows has, because
readers that look at one file take its columns for the table's. Each has its number in the table
(``field_ids``). The Arrow schema is not stored: Spark, DuckDB, pandas and pyarrow read Parquet's
own types alike, and the manifest has the rest.

Beside the given rows, two blocks of a few row groups and the encoded bytes are held: of one file
whose next block is sorted while the previous one is encoded, or of two files made at once. With few
processors one thing is done at a time (tests/persist/parquet/test_few_processors.py).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from persist.manifest import ColumnStats
from persist.parquet.field_ids import with_field_ids
from persist.parquet.reading import NULL_COLUMNS, footer_checksum
from persist.parquet.sort import Sorted, sort_rows, without_marks
from persist.parquet.sparse_rows import SparseRows, null_bytes
from persist.parquet.stats import StatsCollector, leaves_without_nan
from persist.prefetch import one_ahead, two_at_once
from persist.table import TableDefinition


@dataclass(frozen=True, slots=True)
class Compression:
    """A codec as pyarrow names it, and its level; ``None`` is the codec's default."""

    codec: str = "zstd"
    level: int | None = None

    @classmethod
    def parse(cls, text: str) -> Compression:
        """Read ``zstd``, ``zstd:9``, ``snappy``, ``gzip:6``, ``lz4``, ``none``.

        Raises:
            ValueError: no such codec, or no such level of it.
        """
        codec, separator, level = text.partition(":")
        if codec not in CODECS:
            raise ValueError(f"compression {text!r}: none of {', '.join(CODECS)}")
        if not separator:
            return cls(codec)
        levels = CODECS[codec]
        if not level.isdecimal() or int(level) not in levels:
            asked = f"{levels[0]} to {levels[-1]}" if levels else "none"
            raise ValueError(f"compression {text!r}: levels of {codec} are {asked}")
        return cls(codec, int(level))


CODECS = {
    "zstd": range(1, 23),
    "gzip": range(1, 10),
    "snappy": range(0),
    "lz4": range(0),
    "none": range(0),
}
"""The codecs that all Parquet readers support, and their levels."""
ZSTD = Compression()


@dataclass(frozen=True, slots=True)
class Pages:
    """The form of pages, the leaves with statistics (:mod:`persist.parquet.stats`), and the table's
    columns with their numbers, if they are known.
    """

    compression: Compression = ZSTD
    statistics: list[str] | bool = True
    numbered: pa.Schema | None = None


PAGES = Pages()


ROW_GROUP_ROWS = 128 * 1024
ROW_GROUP_BYTES = 32 << 20
BLOCK_BYTES = 16 << 20
"""Rows that are sorted at a time, unless one row group is larger."""
MIXED_BYTES = 64 << 20
"""The bytes of a block of rows with different columns, side by side with all columns."""
DECODED_BYTES, WIDE_GROUP_ROWS = 256 << 20, 32 * 1024
"""A row group with its absent columns as nulls, as many readers decode it, has at most this many
bytes or rows: each column of each group also takes space in the file.
"""

ROOM_TIMES, FACTS_BYTES, CHUNK_BYTES = 2, 1 << 20, 1024
"""Memory for a file: a multiple of its rows' memory, plus its metadata, plus the metadata of each
absent column of a row group.
"""

FEW_PROCESSORS = 2
"""Up to this many processors, one is left to writers. On two, a flush with both takes a fifth less
time and costs writers a tenth more at their 99th percentile.
"""

SAMPLE_ROWS = 4096
REPEATS = 0.8
"""The share of distinct values among the first rows up to which a column gets a dictionary. For
random values that is about 9,000; a dictionary of many more does not pay.
"""


class OutOfRoom(Exception):
    """A file exceeded the memory estimated for it."""


@dataclass(frozen=True, slots=True)
class EncodedFile:
    """A Parquet file in memory: bytes, footer checksum, rows, bounds per column."""

    data: pa.Buffer
    footer_crc32c: int
    rows: int
    stats: dict[str, ColumnStats]
    arrivals: npt.NDArray[np.uint32] | None
    """The position of each row among the given rows; ``None`` if no row has moved."""


def encode_sorted(
    table: pa.Table | SparseRows,
    definition: TableDefinition,
    *,
    metadata: Mapping[str, str],
    target_bytes: int,
) -> Iterator[EncodedFile]:
    """Sort rows, deduplicate them if keyed, and encode them.

    Args:
        table: rows in order of arrival, with the definition's schema, and :data:`DELETED` if some
            of them delete.
        metadata: key-value metadata of each file; ``sort_order`` and ``rows`` are added.
        target_bytes: a file is cut at this size of its rows in memory.

    Yields:
        Files in sort order, each with at least one row; none if all rows were deleted.
    """
    ordered = sort_rows(table, definition)
    rows, _ = without_marks(table, definition)
    files = files_of(rows, target_bytes)
    yield from encode_ordered(rows, ordered, definition, metadata=metadata, files=files)


def files_of(table: SparseRows, target_bytes: int) -> int:
    """The number of files such that none exceeds the target by its rows' size in memory."""
    return max(1, -(-int(table.nbytes) // max(1, target_bytes)))


def encode_ordered(
    table: pa.Table | SparseRows,
    ordered: Sorted,
    definition: TableDefinition,
    *,
    metadata: Mapping[str, str],
    files: int,
    compression: Compression = ZSTD,
) -> Iterator[EncodedFile]:
    """Encode ordered rows as this many files of about the same number of rows.

    Args:
        table: the rows that were ordered, without marks.
        definition: of the table that will list the files; it numbers the columns.
    """
    step = max(1, -(-ordered.rows // files))
    table = SparseRows.of_table(table)
    group = row_group_rows(table)
    block = group * max(1, BLOCK_BYTES // max(1, group * average_bytes(table)))
    nested = [field.name for field in table.absent if pa.types.is_nested(field.type)]
    if nested:
        metadata = {**metadata, NULL_COLUMNS: json.dumps(nested)}
    starts = range(0, ordered.rows, step)
    if not starts:
        return
    numbered = with_field_ids(definition.schema, definition.first_schema_id)
    pages = Pages(compression, leaves_without_nan(table), numbered)
    if len(starts) == 1:
        # One block is sorted while the previous one is encoded.
        every, sizes = range(ordered.rows), (group, block)
        ahead = one_ahead if _processors() > FEW_PROCESSORS else iter
        yield _file(table, ordered, metadata, every, sizes, pages, ahead)
        return
    files_of = (range(start, min(start + step, ordered.rows)) for start in starts)
    sizes = (group, block)
    jobs = (partial(_file, table, ordered, metadata, rows, sizes, pages) for rows in files_of)
    yield from two_at_once(jobs) if _processors() > FEW_PROCESSORS else (job() for job in jobs)


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _file(
    table: SparseRows,
    ordered: Sorted,
    metadata: Mapping[str, str],
    rows: range,
    sizes: tuple[int, int],
    pages: Pages,
    ahead: Callable[[Iterator[pa.Table]], Iterator[pa.Table]] = iter,
) -> EncodedFile:
    """One file of these rows; ``sizes`` are the rows of a group and of a block."""
    group, block = sizes
    facts = {**metadata, "sort_order": ",".join(ordered.order), "rows": str(len(rows))}

    def encoded(room: int | None) -> tuple[pa.Buffer, StatsCollector] | None:
        stats = StatsCollector(table.schema)

        def blocks() -> Iterator[pa.Table]:
            first = rows.start
            while first < rows.stop:
                count = ordered.fitting(first, min(block, rows.stop - first), MIXED_BYTES)
                piece = ordered.slice(first, count)
                first += count
                stats.add(piece)
                yield piece
                del piece

        try:
            return encode(ahead(blocks()), facts, group, pages, room=room), stats
        except OutOfRoom:
            return None  # its memory is free again

    room = ROOM_TIMES * len(rows) * average_bytes(table) + FACTS_BYTES
    room += CHUNK_BYTES * len(table.absent) * -(-len(rows) // group)
    made = encoded(room) or encoded(None)
    assert made is not None  # the second attempt has no limit
    data, stats = made
    arrivals = None if ordered.arrivals is None else ordered.arrivals[rows.start : rows.stop]
    return EncodedFile(data, footer_checksum(data), len(rows), stats.stats(), arrivals)


def encode(
    blocks: Iterable[pa.Table],
    metadata: Mapping[str, str],
    group_rows: int = ROW_GROUP_ROWS,
    pages: Pages = PAGES,
    *,
    room: int | None = None,
) -> pa.Buffer:
    """One Parquet file of rows in the given order; each block ends a row group. At least one block.

    One block is held here at a time.

    Args:
        room: the memory that the file will hardly exceed. It is allocated at once, and only written
            pages take memory; a growing buffer would be copied repeatedly.

    Raises:
        OutOfRoom: it needs more, or the memory cannot be allocated.
    """
    if room is None:
        growing = pa.BufferOutputStream()
        _write(growing, iter(blocks), metadata, group_rows, pages)
        return growing.getvalue()
    try:
        memory = pa.allocate_buffer(room)
        sink = pa.FixedSizeBufferWriter(memory)
        _write(sink, iter(blocks), metadata, group_rows, pages)
    except (OSError, MemoryError) as exc:
        # Arrow raises OSError for other reasons too.
        if isinstance(exc, OSError) and "out of bounds" not in str(exc):
            raise
        raise OutOfRoom(f"a file of more than {room} bytes: {exc}") from exc
    return memory.slice(0, sink.tell())


def _write(
    sink: pa.NativeFile,
    left: Iterator[pa.Table],
    metadata: Mapping[str, str],
    group_rows: int,
    pages: Pages,
) -> None:
    block: pa.Table | None = next(left)
    assert block is not None
    typed = _typed_columns(block)
    with _writer(sink, block.select(typed), pages) as writer:
        while block is not None:
            writer.write_table(block.select(typed), row_group_size=group_rows)
            block = None  # released before the next one is made
            block = next(left, None)
        writer.add_key_value_metadata(dict(metadata))


def _typed_columns(table: pa.Table) -> list[str]:
    """The columns that have a Parquet type; a column of type null is read as null."""
    return [f.name for f in table.schema if not pa.types.is_null(f.type)]


def _writer(sink: pa.NativeFile, table: pa.Table, pages: Pages) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        sink,
        _numbered(table.schema, pages.numbered),
        compression=pages.compression.codec,
        compression_level=pages.compression.level,
        use_dictionary=_dictionary_columns(table),
        write_statistics=pages.statistics,
        write_page_index=True,
        write_page_checksum=True,
        store_schema=False,
        version="2.6",
    )


def _numbered(schema: pa.Schema, columns: pa.Schema | None) -> pa.Schema:
    """The schema, with the numbers that its columns have in the table."""
    if columns is None:
        return schema
    if schema.equals(columns):
        return columns
    own = (columns.field(name) for name in schema.names)
    return pa.schema(
        # The types are the same, but for plain columns that are dictionaries in memory.
        field.with_type(mine.type if pa.types.is_nested(field.type) else field.type).with_metadata(
            mine.metadata
        )
        for field, mine in zip(schema, own, strict=True)
    )


def job_bytes(rows: int, nbytes: int, columns: int, mixed: bool) -> int:
    """About the bytes that rows of this size take, beside themselves, while files are made.

    Args:
        columns: of the table; rows may lack most of them.
        mixed: whether rows differ in their columns.
    """
    facts = CHUNK_BYTES * columns * -(-rows // WIDE_GROUP_ROWS)
    return nbytes + facts + (MIXED_BYTES if mixed else 0)


def row_group_rows(rows: SparseRows) -> int:
    """The rows of a group: 128 Ki, or fewer if rows are wide, because readers decode a whole
    group.
    """
    there = average_bytes(rows)
    decoded = there + int(sum(null_bytes(field.type) for field in rows.absent))
    wide = max(WIDE_GROUP_ROWS, DECODED_BYTES // decoded)
    return max(1, min(ROW_GROUP_ROWS, ROW_GROUP_BYTES // there, wide))


def average_bytes(rows: SparseRows) -> int:
    """Bytes of a row in memory, at least 1; absent columns have none."""
    return max(1, int(rows.nbytes) // max(1, int(rows.num_rows)))


def _dictionary_columns(table: pa.Table) -> list[str]:
    """The columns whose values repeat; a dictionary of others costs more than all else."""
    sample = table.slice(0, SAMPLE_ROWS)
    return [
        field.name
        for field in table.schema
        if not (pa.types.is_floating(field.type) or pa.types.is_timestamp(field.type))
        and not pa.types.is_nested(field.type)
        and (pa.types.is_dictionary(field.type) or _repeats(sample[field.name]))
    ]


def _repeats(column: pa.ChunkedArray) -> bool:
    return int(pc.count_distinct(column).as_py()) <= REPEATS * len(column)
