"""Reads a keyed partition's files by ranges of the key within a memory limit; finds repeated keys.

    bounds of files ─▶ spans of the key's first column ─▶ row groups that may overlap ─▶ rows

Each row is in exactly one span, and two rows with one key are in the same span. A span with too
many rows is halved by hashes of the whole key. Blocks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from persist.manifest import Add
from persist.parquet.key_overlap import comparable
from persist.parquet.reading import (
    DataFile,
    columns_with_values,
    damage_errors,
    group_bounds,
    open_checked,
)
from persist.parquet.sort_keys import argsort, key_of
from persist.parquet.sparse_rows import SparseRows, concatenated
from persist.store import ObjectStore
from persist.table import TableDefinition

ENCODED_TO = 4
"""The assumed ratio of a file's rows in memory to its size, before it is read."""
MOST_PARTS = 1 << 12
"""A span is cut into at most this many parts by hashes; larger parts are read anyway."""

_PRIME, _MIX = np.uint64(0x100000001B3), np.uint64(0x9E3779B97F4A7C15)

Hashes = npt.NDArray[np.uint64]


class Span(NamedTuple):
    """Rows from one value of the key's first column up to another, and of one part by their
    hashes.
    """

    low: Any
    high: Any
    parts: int = 1
    part: int = 0

    def halves(self) -> tuple[Span, Span]:
        """Two spans that together have this one's rows."""
        parts = 2 * self.parts
        other = self.part + self.parts
        return self._replace(parts=parts), self._replace(parts=parts, part=other)


class TooMuch(Exception):
    """The rows of a span exceed the limit."""


@dataclass(frozen=True, slots=True)
class KeySpans:
    """Spans of one partition's keys, and the rows of each.

    Attributes:
        folder: Of the table version that the files are in.
        names: The columns that are read; all by default.
    """

    store: ObjectStore
    folder: str
    definition: TableDefinition
    names: tuple[str, ...] = ()

    def of(self, files: Sequence[Add], room: int) -> list[Span]:
        """Spans between lower bounds of these files, each of about the limit."""
        bounds = [add.stats.get(self._first) for add in files]
        known = comparable(pa.chunked_array([], self._kind)) is not None
        lows = {one.min for one in bounds if known and one is not None and one.min is not None}
        cuts = sorted(lows)[1:]
        rows = np.zeros(len(cuts) + 1)
        for add, one in zip(files, bounds, strict=True):
            low = 0 if one is None or one.min is None or not known else _place(cuts, one.min)
            high = len(cuts) if one is None or one.max is None else _place(cuts, one.max)
            rows[low : high + 1] += add.rows / (high + 1 - low)
        size = sum(add.bytes for add in files) / max(1, sum(add.rows for add in files))
        most = room / max(1.0, ENCODED_TO * size)
        chosen, count = [], 0.0
        for cut, before in zip(cuts, rows.tolist(), strict=False):
            count += before
            if count >= most:
                chosen.append(cut)
                count = 0.0
        return [Span(low, high) for low, high in pairwise([None, *chosen, None])]

    def rows(self, files: Sequence[Add], span: Span, room: int) -> SparseRows:
        """The rows of these files that are in a span.

        Raises:
            TooMuch: They exceed the limit: ask for its halves.
            StoreError, FileDamaged: from reading files.
        """
        found: list[SparseRows] = [SparseRows(self._schema, ())]
        nbytes = 0
        for add in files:
            if not _may_overlap(add.stats.get(self._first), span):
                continue
            for rows in self._groups(add, span):
                nbytes += rows.nbytes
                if nbytes > room and span.parts < MOST_PARTS:
                    raise TooMuch
                found.append(rows)
        return concatenated(found)

    @property
    def _first(self) -> str:
        return self.definition.primary_key[0]

    @property
    def _kind(self) -> pa.DataType:
        return self.definition.schema.field(self._first).type

    @property
    def _schema(self) -> pa.Schema:
        schema = self.definition.schema
        return pa.schema([schema.field(name) for name in self.names]) if self.names else schema

    def _groups(self, add: Add, span: Span) -> Iterator[SparseRows]:
        """The span's rows of each row group that may have any."""
        file, schema = DataFile.of(add, self.folder), self._schema
        with self.store.open(file.path) as source, damage_errors(file.path):
            parquet = open_checked(source, file)
            footer = parquet.metadata
            for index in range(footer.num_row_groups):
                if _may_overlap(group_bounds(footer, index, schema).get(self._first), span):
                    columns = columns_with_values(footer, index, schema.names)
                    table = parquet.read_row_group(index, columns=columns, use_threads=False)
                    rows = SparseRows.of(table.to_batches(), schema)
                    yield rows.filter(self._within(rows, span))

    def _within(self, rows: SparseRows, span: Span) -> npt.NDArray[np.bool_]:
        keys = rows.table(list(self.definition.primary_key))
        mask = np.ones(rows.num_rows, np.bool_)
        if span.low is not None or span.high is not None:
            values = comparable(keys.column(0))
            assert values is not None  # otherwise there are no bounds to cut at
            for bound, test in ((span.low, pc.greater_equal), (span.high, pc.less)):
                if bound is not None:
                    mask &= test(values, pa.scalar(bound, values.type)).to_numpy()
        if span.parts > 1:
            mask &= (_hashes(keys) & np.uint64(span.parts - 1)) == np.uint64(span.part)
        return mask


def _place(cuts: Sequence[Any], bound: Any) -> int:
    """The number of the span, between these cuts, that contains a value."""
    return bisect_right(cuts, bound)


def _may_overlap(bounds: Any, span: Span) -> bool:
    if bounds is None:
        return True
    below = span.low is not None and bounds.max is not None and bounds.max < span.low
    above = span.high is not None and bounds.min is not None and bounds.min >= span.high
    return not (below or above)


def _hashes(keys: pa.Table) -> Hashes:
    """A number for each key, the same in every file."""
    found = np.zeros(keys.num_rows, np.uint64)
    for column in keys.columns:
        found = (found ^ _numbers(column)) * _PRIME
        found ^= found >> np.uint64(29)
    found *= _MIX
    found ^= found >> np.uint64(32)
    return found


def _numbers(column: pa.ChunkedArray) -> Hashes:
    kind = column.type
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.int64())
    if pa.types.is_integer(column.type):
        numbers: Hashes = column.to_numpy().astype(np.uint64)
        return numbers
    encoded = column.combine_chunks().dictionary_encode()
    values = encoded.dictionary.to_pylist()
    codes = np.array([crc32(repr(value).encode()) for value in values], np.uint64)
    hashes: Hashes = codes[encoded.indices.to_numpy(zero_copy_only=False)]
    return hashes


KEY_BYTES = 64 << 20
"""About the bytes of keys held at once."""


def repeated_key(
    store: ObjectStore,
    folder: str,
    files: Sequence[Add],
    definition: TableDefinition,
    room: int = KEY_BYTES,
) -> dict[str, Any] | None:
    """A key that two rows of these files have, or None.

    Files whose keys are disjoint by their bounds are not read, and of the others only the key.
    Within one file each key occurs once, as its writer ensures.

    Args:
        folder: Of the table version that the files are in.
        files: Of one partition.

    Raises:
        StoreError, FileDamaged: from reading files.
    """
    spans = KeySpans(store, folder, definition, definition.primary_key)
    first = definition.schema.field(definition.primary_key[0])
    for together in _overlapping(files, first):
        for span in spans.of(together, room):
            if (found := _repeated_in(spans, together, span, room)) is not None:
                return found
    return None


def first_repeated(rows: SparseRows, names: Sequence[str]) -> dict[str, Any] | None:
    """A key that two of these rows have, or None."""
    if rows.num_rows < 2:
        return None
    keys = [key_of(name, rows.column(name))[1] for name in names]
    codes = [key.codes for key in keys]
    order = argsort(keys)
    equal = np.ones(len(order) - 1, np.bool_)
    for one in codes:
        equal &= one[order[1:]] == one[order[:-1]]
    if not equal.any():
        return None
    row = int(order[int(np.flatnonzero(equal)[0])])
    return {name: rows.column(name)[row].as_py() for name in names}


def _repeated_in(
    spans: KeySpans, files: Sequence[Add], span: Span, room: int
) -> dict[str, Any] | None:
    try:
        keys = spans.rows(files, span, room)
    except TooMuch:
        found = (_repeated_in(spans, files, half, room) for half in span.halves())
        return next((each for each in found if each is not None), None)
    return first_repeated(keys, spans.names)


def _overlapping(files: Sequence[Add], first: pa.Field) -> Iterator[list[Add]]:
    """Groups of files whose keys are disjoint between groups; single files are left out."""
    bounds = [add.stats.get(first.name) for add in files]
    unknown = any(one is None or one.min is None or one.max is None for one in bounds)
    if unknown or comparable(pa.chunked_array([], first.type)) is None:
        if len(files) > 1:
            yield list(files)
        return
    group: list[Add] = []
    highest: Any = None
    for add in sorted(files, key=lambda add: _low(add, first.name)):
        if group and _low(add, first.name) > highest:
            if len(group) > 1:
                yield group
            group, highest = [], None
        group.append(add)
        high: Any = add.stats[first.name].max
        highest = high if highest is None else max(highest, high)
    if len(group) > 1:
        yield group


def _low(add: Add, name: str) -> Any:
    return add.stats[name].min
