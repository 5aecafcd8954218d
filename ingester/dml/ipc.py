"""The Arrow IPC message of a batch, without copying rows that arrived in one piece.

    received   ── metadata of another batch with its numbers replaced │ the body as received
    any other  ── serialised by Arrow: one copy of all rows

A batch received over Flight lies in one piece in the body of its message. The log additionally
needs the few hundred bytes of metadata that say where each column is. Arrow cannot make these
alone, so they are taken from a batch that Arrow serialised, and the numbers in them are
replaced. Whenever a layout is not exactly as expected, Arrow serialises the batch; both ways
read back as the same batch (tests/dml).

Source: Arrow's format/Message.fbs, FlatBuffers' internals (tables, vtables, vectors).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
import pyarrow as pa

ALIGNMENT = 8
WASTE_BYTES = 4 * 1024
"""Rows that keep more bytes alive than this plus a quarter of their own are copied."""

SMALL_BYTES = 2 * 1024
"""Below this size, copying is faster than finding out where the bytes are."""

_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_I64 = struct.Struct("<q")
_OFFSETS = {
    pa.string(): np.int32,
    pa.binary(): np.int32,
    pa.large_string(): np.int64,
    pa.large_binary(): np.int64,
}
_PREFIX_BYTES = 8  # continuation marker and metadata length


class IpcMessage(NamedTuple):
    """A record batch as ``metadata`` followed by ``body``."""

    metadata: bytes
    body: pa.Buffer
    size: int

    @classmethod
    def serialized(cls, batch: pa.RecordBatch) -> IpcMessage:
        """Serialise a batch with Arrow; all of it is in ``body``."""
        body = batch.serialize()
        return cls(b"", body, body.size)


class _Numbers(NamedTuple):
    """The numbers that differ between the metadata of two batches of one schema."""

    rows: int
    nodes: list[int]
    """(length, nulls) of each column."""
    buffers: list[int]
    """(offset in the body, length) of each buffer."""
    body: pa.Buffer


class _Places(NamedTuple):
    """Positions of these numbers in the metadata."""

    rows: int
    nodes: int
    buffers: int
    body_bytes: int


class MessageTemplate:
    """Makes messages of batches of one schema. Thread-safe."""

    def __init__(self) -> None:
        self._metadata: bytes | None = None
        self._places: _Places | None = None
        self._pack_nodes = self._pack_buffers = struct.Struct("")
        self._useless = False

    def message(self, batch: pa.RecordBatch) -> IpcMessage:
        """Return the batch's message; its body is where the batch lies, or a copy."""
        if self._useless or batch.get_total_buffer_size() < SMALL_BYTES:
            return IpcMessage.serialized(batch)
        numbers = body_numbers(batch)
        if numbers is None:
            return IpcMessage.serialized(batch)
        if self._metadata is None:
            return self._learn(batch, numbers)
        return self._filled_in(numbers)

    def _learn(self, batch: pa.RecordBatch, numbers: _Numbers) -> IpcMessage:
        """Serialise the first batch and keep its metadata if the layout is as expected."""
        message = IpcMessage.serialized(batch)
        whole = memoryview(message.body)
        size = _PREFIX_BYTES + _I32.unpack_from(whole, 4)[0]
        metadata = bytes(whole[:size])
        if _has_more(batch.schema) or not self.understands(metadata, numbers, message.size - size):
            self._useless = True
        else:
            self._metadata = metadata  # last, because another thread may use it from here
        return message

    def understands(self, metadata: bytes, numbers: _Numbers, body_bytes: int) -> bool:
        """Locate a batch's numbers in the metadata; return whether exactly these were found."""
        nodes = struct.Struct(f"<{len(numbers.nodes)}q")
        buffers = struct.Struct(f"<{len(numbers.buffers)}q")
        try:
            places = _places(metadata)
            if (
                places is None
                or _I64.unpack_from(metadata, places.rows)[0] != numbers.rows
                or _I64.unpack_from(metadata, places.body_bytes)[0] != body_bytes
                or _vector(metadata, places.nodes, nodes) != tuple(numbers.nodes)
                or _vector(metadata, places.buffers, buffers) is None
            ):
                return False
        except struct.error:  # an offset is out of bounds: an unknown layout
            return False
        self._places, self._pack_nodes, self._pack_buffers = places, nodes, buffers
        return True

    def _filled_in(self, numbers: _Numbers) -> IpcMessage:
        assert self._metadata is not None
        assert self._places is not None
        places, metadata = self._places, bytearray(self._metadata)
        _I64.pack_into(metadata, places.rows, numbers.rows)
        _I64.pack_into(metadata, places.body_bytes, numbers.body.size)
        self._pack_nodes.pack_into(metadata, places.nodes + _U32.size, *numbers.nodes)
        self._pack_buffers.pack_into(metadata, places.buffers + _U32.size, *numbers.buffers)
        return IpcMessage(bytes(metadata), numbers.body, len(metadata) + numbers.body.size)


def sizes_of(rows: pa.RecordBatch, starts: list[int]) -> list[int]:
    """Return the bytes of each run of rows.

    Args:
        starts: the first row of each run, and the end of the last.
    """
    counts = np.diff(starts)
    sizes = np.zeros(len(counts), dtype=np.int64)
    for column in rows.columns:
        kind = column.type
        if (width := _OFFSETS.get(kind)) is not None:
            count = len(column) + 1
            at = column.offset * np.dtype(width).itemsize
            offsets = np.frombuffer(column.buffers()[1], width, count, at)[starts]
            sizes += np.diff(offsets) + counts * offsets.itemsize
        elif kind.num_fields or pa.types.is_null(kind):
            runs = zip(starts[:-1], counts.tolist(), strict=True)
            sizes += [column.slice(start, count).nbytes for start, count in runs]
        else:
            sizes += counts * kind.bit_width // 8
    return list(sizes.tolist())


def compact(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return a copy of the rows that keeps no other memory alive."""
    # With another batch, because some versions of Arrow return a single one as it is.
    return pa.concat_batches([rows, rows.slice(0, 0)])


def keeps_more(batch: pa.RecordBatch, nbytes: int) -> bool:
    """Return whether the batch keeps much more memory alive than the ``nbytes`` counted for it.

    A column may be a slice of a message's body, which keeps the whole body alive.
    """
    kept: dict[int, int] = {}
    for column in batch.columns:
        # All columns: a converted one may combine new values with received nulls.
        for buffer in column.buffers():
            if buffer is not None:
                while (whole := buffer.parent) is not None:
                    buffer = whole
                kept[buffer.address] = buffer.size
    return _is_wasteful(sum(kept.values()), nbytes)


def _is_wasteful(kept: int, nbytes: int) -> bool:
    return kept - nbytes > WASTE_BYTES + nbytes // 4


def body_numbers(batch: pa.RecordBatch) -> _Numbers | None:
    """Return where the columns lie in one body; None if they do not, or not as IPC requires.

    They must lie one behind the other, as Arrow writes them: shared buffers would count once.
    """
    body: pa.Buffer | None = None
    start = size = end = referred = 0
    nodes: list[int] = []
    buffers: list[int] = []
    for column in batch.columns:
        if column.offset:
            return None
        nodes += (len(column), column.null_count)
        for buffer in column.buffers():
            length = 0 if buffer is None else buffer.size
            if not length:
                buffers += (0, 0)
                continue
            if body is None:
                body = buffer.parent
                if body is None or body.size % ALIGNMENT:
                    return None
                start, size = body.address, body.size
            at = buffer.address - start
            if at % ALIGNMENT or at < end or at + length > size:
                return None
            buffers += (at, length)
            end = at + length
            referred += length
    if body is None or _is_wasteful(size if body.parent is None else body.parent.size, referred):
        return None
    return _Numbers(batch.num_rows, nodes, buffers, body)


def _has_more(schema: pa.Schema) -> bool:
    """Return whether a type needs more metadata than one length and its buffers."""
    types = pa.types
    return any(
        t.num_fields
        or types.is_dictionary(t)
        or types.is_null(t)
        or types.is_string_view(t)
        or types.is_binary_view(t)
        or isinstance(t, pa.BaseExtensionType)
        for t in schema.types
    )


def numbers_in(metadata: bytes) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Locate the (length, nulls) of each column, and the (offset, length) of each buffer.

    Returns:
        The position of each vector, and the number of its pairs; None if the layout is unknown.
    """
    try:
        places = _places(metadata)
        if places is None:
            return None
        counts = (_U32.unpack_from(metadata, at)[0] for at in (places.nodes, places.buffers))
        return (places.nodes, next(counts)), (places.buffers, next(counts))
    except struct.error:  # an offset is out of bounds
        return None


def _places(metadata: bytes) -> _Places | None:
    """Locate the numbers in a record batch's metadata; None if it has other fields."""
    message = _followed(metadata, _PREFIX_BYTES)
    header, body_bytes = _field(metadata, message, 2), _field(metadata, message, 3)
    if header is None or body_bytes is None:
        return None
    batch = _followed(metadata, header)
    rows, nodes, buffers = (_field(metadata, batch, index) for index in range(3))
    if rows is None or nodes is None or buffers is None:
        return None
    if any(_field(metadata, batch, index) is not None for index in (3, 4)):
        return None  # compressed, or with views
    return _Places(rows, _followed(metadata, nodes), _followed(metadata, buffers), body_bytes)


def _followed(data: bytes, at: int) -> int:
    """Follow the offset at this position."""
    return at + int(_U32.unpack_from(data, at)[0])


def _field(data: bytes, table: int, index: int) -> int | None:
    """Return the position of a table's field; None if it is absent."""
    vtable = table - _I32.unpack_from(data, table)[0]
    slot = 4 + 2 * index
    if slot >= _U16.unpack_from(data, vtable)[0]:
        return None
    offset = int(_U16.unpack_from(data, vtable + slot)[0])
    return table + offset if offset else None


def _vector(data: bytes, at: int, form: struct.Struct) -> tuple[int, ...] | None:
    """Read a vector of pairs of 64-bit numbers; None if its length differs from ``form``."""
    if _U32.unpack_from(data, at)[0] * 16 != form.size:
        return None
    return form.unpack_from(data, at + _U32.size)
