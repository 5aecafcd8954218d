"""Reads Parquet files: checks the footer before Arrow sees it, bounds of row groups, rows.

    "PAR1" | pages … | footer | its length (4, little-endian) | "PAR1"
                     └────────── footer_crc32c ──────────────┘

Parquet has no checksum for its footer, and Arrow ends the whole process on some inconsistent ones:
a column of a row group with another type than the schema raises a C++ exception that nothing
catches (seen with pyarrow 26 for 1 of 300 changed bytes). Arrow therefore gets only footers with
the checksum that the manifest recorded (tests/persist/parquet/test_footer.py). For older files
without one, only size and frame are checked. Pages have their own checksums, which Arrow verifies
on request.

A column that is null in a whole row group is not decoded if the statistics say so or, for nested
columns, the file's metadata.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from persist.manifest import Add, ColumnStats
from persist.parquet.sparse_rows import SparseRows
from persist.parquet.stats import stat_value

MAGIC = b"PAR1"
NULL_COLUMNS = "null_columns"
"""The key of a file's metadata under which it names, as JSON, its nested columns without a value;
other columns are covered by their statistics.
"""
_FRAME = struct.Struct("<I4s")
# The first read; the footers of most files are smaller.
_GUESS_BYTES = 64 << 10


class FileDamaged(Exception):
    """A data file differs from what was written; the message names it and says why."""


class RowsTooLarge(Exception):
    """The rows of a file exceed the memory allowed for them."""


class DataFile(NamedTuple):
    """A file and what is known of it; ``path`` is from the store's root."""

    path: str
    bytes: int | None = None
    footer_crc32c: int | None = None

    @classmethod
    def of(cls, add: Add, root: str) -> DataFile:
        """The file of a manifest entry, whose path is relative to ``root``."""
        return cls(f"{root}/{add.path}", add.bytes, add.footer_crc32c)


def footer_checksum(data: pa.Buffer) -> int:
    """The CRC-32C of the end of a whole file that was just written."""
    return int(crc32c(memoryview(data)[-_framed_bytes(data, "just written") :]))


def read_footer(source: pa.NativeFile, file: DataFile) -> pq.FileMetaData:
    """The metadata of an open file; usually takes one read.

    Raises:
        FileDamaged: the checksum, the size or the frame is wrong.
    """
    with damage_errors(file.path):
        size = int(source.size())
        if file.bytes is not None and size != file.bytes:
            raise FileDamaged(f"file {file.path} has {size} bytes, and should have {file.bytes}")
        end = source.read_at(min(size, _GUESS_BYTES), max(0, size - _GUESS_BYTES))
        wanted = _framed_bytes(end, file.path)
        if wanted + len(MAGIC) > size:
            raise FileDamaged(f"file {file.path} has {size} bytes, its footer claims {wanted}")
        end = source.read_at(wanted, size - wanted) if wanted > len(end) else end[-wanted:]
        found = crc32c(end)
        if file.footer_crc32c is not None and found != file.footer_crc32c:
            raise FileDamaged(
                f"the footer of file {file.path} has the checksum {found:08x},"
                f" and should have {file.footer_crc32c:08x}"
            )
        return pq.read_metadata(pa.BufferReader(end))


def open_checked(source: pa.NativeFile, file: DataFile, **options: Any) -> pq.ParquetFile:
    """A reader of an open file that checks the footer now, and pages when they are decoded.

    Raises:
        FileDamaged: the footer is damaged.
    """
    footer = read_footer(source, file)
    return pq.ParquetFile(source, metadata=footer, page_checksum_verification=True, **options)


@contextmanager
def damage_errors(path: str) -> Iterator[None]:
    """Raise Arrow's error about damaged bytes as :class:`FileDamaged`, and a store's error as it
    is.

    Arrow uses one class for both; an error of the system has an errno.
    """
    try:
        yield
    except MemoryError:
        raise  # also Arrow's, which is an ArrowException as well
    except (pa.ArrowException, UnicodeDecodeError) as exc:
        raise FileDamaged(f"file {path} is damaged: {exc}") from exc
    except OSError as exc:
        if type(exc) is OSError and exc.errno is None:
            raise FileDamaged(f"file {path} is damaged: {exc}") from exc
        raise


def _framed_bytes(end: Any, path: str) -> int:
    """Length of the footer with its frame, from the last bytes of a file."""
    if len(end) < _FRAME.size:
        raise FileDamaged(f"file {path} has {len(end)} bytes, less than a footer")
    length, magic = _FRAME.unpack(memoryview(end)[-_FRAME.size :])
    if magic != MAGIC:
        raise FileDamaged(f"file {path} ends with {magic!r}, not with {MAGIC!r}")
    return int(length) + _FRAME.size


_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8}
"""Bytes of a value; texts have an offset."""


def decoded_bytes(footer: pq.FileMetaData, index: int, columns: tuple[str, ...]) -> int:
    """About the size in memory of some columns of a row group.

    Encoded sizes say little: a column with few distinct texts takes fifty times as much when
    decoded. Where a dictionary may hide the length of texts, the bounds tell it.
    """
    group = footer.row_group(index)
    nbytes = 0
    for leaf in range(group.num_columns):
        column = group.column(leaf)
        if column.path_in_schema.split(".")[0] not in columns:
            continue
        width = _WIDTHS.get(column.physical_type, 4)
        if column.physical_type == "BYTE_ARRAY" and column.is_stats_set:
            bounds = (column.statistics.min_raw, column.statistics.max_raw)
            width += max((len(bound) for bound in bounds if bound is not None), default=0)
        nbytes += max(column.total_uncompressed_size, width * column.num_values)
    return nbytes


def leaves_of(footer: pq.FileMetaData) -> Iterator[tuple[pa.Field, range]]:
    """Each column of a file, and the numbers of the leaves that store it."""
    first = 0
    for field in footer.schema.to_arrow_schema():
        count = _leaves(field.type)
        yield field, range(first, first + count)
        first += count


def _leaves(kind: pa.DataType) -> int:
    if not pa.types.is_nested(kind):
        return 1
    return sum(_leaves(kind.field(number).type) for number in range(kind.num_fields))


def group_bounds(footer: Any, index: int, schema: pa.Schema) -> dict[str, ColumnStats]:
    """Bounds of the columns of one row group, by their types in ``schema``."""
    found = {}
    group = footer.row_group(index)
    # A leaf inside ``s`` has the path ``s.x``, as a plain column of that name has.
    whole = {f.name for f in footer.schema.to_arrow_schema() if not pa.types.is_nested(f.type)}
    paths = Counter(footer.schema.column(leaf).path for leaf in range(group.num_columns))
    for leaf in range(group.num_columns):
        column = group.column(leaf)
        path = column.path_in_schema
        position = schema.get_field_index(path)
        stats = column.statistics
        if position < 0 or stats is None or path not in whole or paths[path] > 1:
            continue
        kind = schema.field(position).type
        nulls = stats.null_count if stats.has_null_count else None
        low = high = None
        if stats.has_min_max and (pa.types.is_timestamp(kind) or pa.types.is_date32(kind)):
            # Logical values pass through Python's datetime, which has no nanoseconds.
            low, high = stats.min_raw, stats.max_raw
        elif stats.has_min_max:
            low, high = _stat(stats.min, kind), _stat(stats.max, kind)
        found[column.path_in_schema] = ColumnStats(min=low, max=high, nulls=nulls)
    return found


def _stat(value: Any, kind: pa.DataType) -> Any:
    try:
        return stat_value(pa.scalar(value, kind))
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return None


def columns_with_values(
    footer: pq.FileMetaData, index: int, columns: Collection[str] | None = None
) -> list[str]:
    """The columns of a row group, of all or these, that may have values, in the file's order."""
    group, found = footer.row_group(index), []
    asked = None if columns is None else frozenset(columns)
    null = _null_columns(footer)
    for field, leaves in leaves_of(footer):
        if (asked is not None and field.name not in asked) or field.name in null:
            continue
        if not pa.types.is_nested(field.type):
            chunk = group.column(leaves.start)
            stats = chunk.statistics if chunk.is_stats_set else None
            if stats is not None and stats.has_null_count and stats.null_count >= group.num_rows:
                continue
        found.append(field.name)
    return found


def sparse_rows(
    parquet: pq.ParquetFile, schema: pa.Schema | None = None, most_bytes: int | None = None
) -> SparseRows:
    """All rows of an open file.

    Args:
        schema: the columns of the rows, with their types; the file's own by default.
        most_bytes: the memory that they may take; about one row group more is held at the end.

    Raises:
        RowsTooLarge: they take more.
    """
    own = parquet.schema_arrow if schema is None else schema
    batches: list[pa.RecordBatch] = []
    nbytes = 0
    for table in _tables(parquet, own, one_by_one=most_bytes is not None):
        nbytes += table.nbytes
        if most_bytes is not None and nbytes > most_bytes:
            raise RowsTooLarge
        batches += table.to_batches()
    return SparseRows.of(batches, own)


def _tables(parquet: pq.ParquetFile, schema: pa.Schema, *, one_by_one: bool) -> Iterator[pa.Table]:
    """The rows of the row groups, or of several with the same columns at once."""
    footer, wanted = parquet.metadata, set(schema.names)
    groups = [
        (tuple(columns_with_values(footer, index, wanted)), index)
        for index in range(footer.num_row_groups)
    ]
    for (columns, _), same in groupby(groups, key=lambda each: (each[0], one_by_one and each[1])):
        numbers = [index for _, index in same]
        found = parquet.read_row_groups(numbers, columns=[*columns], use_threads=False)
        if not columns:
            rows = sum(footer.row_group(index).num_rows for index in numbers)
            found = pa.table({"": pa.nulls(rows)})
        yield found


def _null_columns(footer: pq.FileMetaData) -> frozenset[str]:
    said = (footer.metadata or {}).get(NULL_COLUMNS.encode())
    return frozenset() if said is None else frozenset(json.loads(said))
