"""The content of an operation: its row count, and a digest of its values.

A repeated sequence is a duplicate only if it brings the same rows. The digest depends on values
alone: not on the bytes of nulls or behind a column's end, on how a column is sliced, on columns
without a value, or on the partitions that the rows are split into (tests/dml/test_content.py).

    digest   CRC-32C of the names of the columns with a value, and of the body that Arrow serialises
             of compact copies of these columns; continued over pieces of :data:`PIECE_ROWS` rows
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from ingester.dml.ipc import ALIGNMENT, IpcMessage, compact, numbers_in
from persist.manifest.actions import Content

PIECE_ROWS = 16384
"""The rows that are serialised at once, so that little memory is needed. Part of the format."""
_EVERY = pa.array(np.arange(PIECE_ROWS, dtype=np.int32))
CRC_AT_ONCE_BYTES = 1 << 20
"""Bodies up to this size are digested without releasing the GIL."""
_PADDING = bytes(ALIGNMENT)
_METADATA_BYTES = struct.Struct("<4xi")
_PREFIX_BYTES = 8


class ContentReader:
    """Finds the content of batches of one schema. Thread-safe."""

    def __init__(self, schema: pa.Schema) -> None:
        self._seed = _seed(schema.names)
        self._packed = frozenset(
            index for index, kind in enumerate(schema.types) if _is_packed(kind)
        )
        """The columns that may have bits, or nulls at depth."""
        self._layout = None if self._packed else _Layout(schema)

    def content(self, rows: pa.RecordBatch, message: IpcMessage | None = None) -> Content:
        """Return the content of converted rows.

        Args:
            message: the message of exactly these rows, if there is one.
        """
        count = rows.num_rows
        if message is not None and self._layout is not None and 0 < count <= PIECE_ROWS:
            digest = self._layout.digest(message, count, self._seed)
            if digest is not None:
                return Content(count, digest)
        digest = 0
        for start in range(0, count, PIECE_ROWS):
            digest = self._continued(digest, rows.slice(start, PIECE_ROWS))
        return Content(count, digest)

    def contents(self, rows: pa.RecordBatch, counts: Sequence[int]) -> list[Content]:
        """Return the contents of the writes that converted rows came from, in order.

        Args:
            counts: the rows of each write.
        """
        ends = list(accumulate(counts, initial=0))
        valued = [index for index, each in enumerate(rows.columns) if each.null_count < len(each)]
        if (
            self._packed
            or any(rows.column(index).null_count for index in valued)
            or max(counts, default=0) > PIECE_ROWS
        ):
            return [self.content(rows.slice(at, end - at)) for at, end in pairwise(ends)]
        if len(valued) < rows.num_columns:
            rows = rows.select(valued)
        return _of_writes(rows, ends)

    def _continued(self, digest: int, rows: pa.RecordBatch) -> int:
        nulls = [column.null_count for column in rows.columns]
        seed = self._seed
        if self._packed or any(nulls):
            rows = self._written_out(rows, nulls)
            seed = _seed(rows.schema.names)
        rows = compact(rows)
        if digest:
            seed = crc32c(digest.to_bytes(4, "little"), seed, 0)
        return crc32c(_body_of(memoryview(rows.serialize())), seed, 0)

    def _written_out(self, rows: pa.RecordBatch, nulls: list[int]) -> pa.RecordBatch:
        """Return the columns with a value, with zeros where a value is null."""
        count, names = rows.num_rows, rows.schema.names
        kept = [index for index, missing in enumerate(nulls) if missing < count]
        rewritten = [index for index in kept if nulls[index] or index in self._packed]
        columns = dict(enumerate(rows.columns))
        if rewritten:
            taken = rows.select(rewritten).take(_EVERY.slice(0, count))
            columns.update(zip(rewritten, taken.columns, strict=True))
        return pa.RecordBatch.from_arrays([columns[at] for at in kept], [names[at] for at in kept])


class _Found(NamedTuple):
    """Where the messages of one schema have their numbers."""

    metadata_bytes: int
    nodes: int
    buffers: int
    of_nodes: struct.Struct
    of_buffers: struct.Struct


class _Expected(NamedTuple):
    """The buffers of compact columns, for the row count of the last message."""

    rows: int
    sizes: tuple[int, ...]
    """Sizes of the buffers that depend on the row count alone."""
    steps: list[tuple[int, int, bytes]]
    """What is digested: where the offset of the buffer is, its length (-1 for text), zeros."""


class _Layout:
    """Digests messages of flat columns without nulls where they lie, without a call into Arrow.

    Where a message has its numbers depends only on the schema, so it is looked up once. Arrow's
    calls alone give the same digest and would cost more than the rest of the digest
    (docs/performance.md), which every small batch would pay.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._sizes: list[tuple[int, int]] = []
        """The bytes of the buffers of fixed size: those of a row, and further ones."""
        fixed: list[int] = []
        self._texts: list[tuple[int, struct.Struct]] = []
        at = 2
        for kind in schema.types:
            fixed.append(at)  # the bitmap of nulls: there are none
            self._sizes.append((0, 0))
            wide = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
            text = wide or pa.types.is_string(kind) or pa.types.is_binary(kind)
            width = (8 if wide else 4) if text else kind.bit_width // 8
            fixed.append(at + 2)
            self._sizes.append((width, width if text else 0))
            if text:
                self._texts.append((at + 2, struct.Struct("<q" if wide else "<i")))
            at += 6 if text else 4
        self._columns, self._buffers = len(schema), at // 2 - 1
        self._fixed_at = fixed
        self._fixed: Callable[[tuple[int, ...]], tuple[int, ...]] = itemgetter(*fixed)
        self._expected = _Expected(-1, (), [])
        self._found: _Found | None = None

    def digest(self, message: IpcMessage, count: int, seed: int) -> int | None:
        """Return the digest of a message of ``count`` rows.

        None if it has, or may have, nulls, or text that does not begin with its first row's.
        """
        body = memoryview(message.body)
        metadata = memoryview(message.metadata) if message.metadata else body
        size = _PREFIX_BYTES + _METADATA_BYTES.unpack_from(metadata)[0]
        if not message.metadata:
            body = body[size:]
        found = self._found
        if found is None or found.metadata_bytes != size:
            found = self._found = self._find(bytes(metadata[:size]))
            if found is None:
                return None
        if any(found.of_nodes.unpack_from(metadata, found.nodes)[2::2]):
            return None
        buffers: tuple[int, ...] = found.of_buffers.unpack_from(metadata, found.buffers)
        expected = self._expected
        if expected.rows != count:
            expected = self._expect(count)
        # Arrow itself has serialised it: there are zeros between the buffers.
        compact = not message.metadata and self._fixed(buffers) == expected.sizes
        ends: list[int] = []
        for at, offset in self._texts:
            first = buffers[at - 1]
            if offset.unpack_from(body, first)[0]:
                return None
            ends += offset.unpack_from(body, first + count * offset.size)
            compact = compact and ends[-1] == buffers[at + 2]
        if compact:
            return crc32c(body, seed, -1 if len(body) > CRC_AT_ONCE_BYTES else 0)
        digest, texts = seed, iter(ends)
        for at, length, padding in expected.steps:
            start = buffers[at]
            if length < 0:
                length = next(texts)
                padding = _PADDING[length % ALIGNMENT :] if length % ALIGNMENT else b""
            digest = crc32c(body[start : start + length], digest, 0)
            if padding:
                digest = crc32c(padding, digest, 0)
        return digest

    def _expect(self, count: int) -> _Expected:
        sizes = tuple(count * row + more for row, more in self._sizes)
        lengths = dict(zip(self._fixed_at, sizes, strict=True))
        steps = []
        for at in range(2, 2 * self._buffers + 1, 2):
            if length := lengths.get(at, -1):
                steps.append((at - 1, length, _PADDING[length % ALIGNMENT or ALIGNMENT :]))
        self._expected = _Expected(count, sizes, steps)
        return self._expected

    def _find(self, metadata: bytes) -> _Found | None:
        found = numbers_in(metadata)
        if found is None:
            return None
        (nodes, of_nodes), (buffers, of_buffers) = found
        if (of_nodes, of_buffers) != (self._columns, self._buffers):
            return None
        return _Found(
            len(metadata),
            nodes,
            buffers,
            struct.Struct(f"<I{2 * of_nodes}q"),
            struct.Struct(f"<I{2 * of_buffers}q"),
        )


def _of_writes(rows: pa.RecordBatch, ends: list[int]) -> list[Content]:
    """Digest the rows between these ends, of flat columns without nulls, where they lie.

    Slicing, copying and serialising each write with Arrow takes three times as long
    (docs/performance.md).
    """
    columns = [_Flat.of(column) for column in rows.columns]
    seed, contents = _seed(rows.schema.names), []
    for start, end in pairwise(ends):
        pieces: list[memoryview | bytes] = []
        for values, width, offsets in columns:
            if offsets is None:
                own = values[start * width : end * width]
            else:
                texts = offsets[start : end + 1]
                places = (texts - texts[0]).tobytes()
                pieces += (places, _PADDING[len(places) % ALIGNMENT or ALIGNMENT :])
                own = values[texts[0] : texts[-1]]
            pieces += (own, _PADDING[len(own) % ALIGNMENT or ALIGNMENT :])
        digest = crc32c(b"".join(pieces), seed, 0) if start < end else 0
        contents.append(Content(end - start, digest))
    return contents


class _Flat(NamedTuple):
    """The memory of a flat column."""

    values: memoryview
    width: int
    """The bytes of a value; 1 for text."""
    offsets: npt.NDArray[Any] | None
    """Where each text begins in ``values``, and where the last one ends."""

    @classmethod
    def of(cls, column: pa.Array) -> _Flat:
        _, first, *more = column.buffers()
        if not more:
            width = column.type.bit_width // 8
            return cls(memoryview(first)[column.offset * width :], width, None)
        wide = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
        offsets = np.frombuffer(first, np.int64 if wide else np.int32)
        return cls(memoryview(more[0] or b""), 1, offsets[column.offset :])


def _body_of(message: memoryview) -> memoryview:
    return message[_PREFIX_BYTES + _METADATA_BYTES.unpack_from(message)[0] :]


def _seed(names: list[str]) -> int:
    return crc32c("\0".join(names).encode(), 0, 0)


def _is_packed(kind: pa.DataType) -> bool:
    return bool(kind.num_fields) or pa.types.is_boolean(kind)
