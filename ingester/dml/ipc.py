"""The Arrow IPC message of a batch, without a copy of its rows where they came in one piece.

    received   ── metadata of another batch, its numbers replaced │ the body as it came
    any other  ── serialised by Arrow: one copy of all rows

A batch that came over Flight lies in the body of the message that brought it, in one piece. What
the log needs besides are the few hundred bytes that say where each column is, which depend on the
schema and on some numbers. Arrow has no call that makes these alone, so its own are taken from a
batch that it serialised, and the numbers are written over.

Law of this file: pure; a message made either way reads as the batch that it was made of. Whatever
is not known to be as expected is serialised by Arrow.

Source: Arrow's format/Message.fbs, FlatBuffers' internals (tables, vtables, vectors).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import pyarrow as pa

ALIGNMENT = 8
WASTE_BYTES = 4 * 1024
"""The bytes that rows may keep besides a quarter of their own; with more they are copied."""

SMALL_BYTES = 2 * 1024
"""The bytes that are copied sooner than it is found out where they lie."""

_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_I64 = struct.Struct("<q")
_PREFIX_BYTES = 8  # a continuation marker and the metadata's length come before the metadata


class IpcMessage(NamedTuple):
    """A record batch as the bytes of ``metadata`` and then those of ``body``."""

    metadata: bytes
    body: pa.Buffer
    size: int

    @classmethod
    def serialized(cls, batch: pa.RecordBatch) -> IpcMessage:
        """Have Arrow write the message, all of it into ``body``."""
        body = batch.serialize()
        return cls(b"", body, body.size)


class _Numbers(NamedTuple):
    """The numbers in which the metadata of two batches of one schema differ."""

    rows: int
    nodes: list[int]
    """(length, nulls) of each column."""
    buffers: list[int]
    """(offset in the body, length) of each buffer."""
    body: pa.Buffer


class _Places(NamedTuple):
    """The places of these numbers in the metadata."""

    rows: int
    nodes: int
    buffers: int
    body_bytes: int


class MessageTemplate:
    """Makes messages of batches of one schema. Any thread; two of them make the same."""

    def __init__(self) -> None:
        self._metadata: bytes | None = None
        self._places: _Places | None = None
        self._pack_nodes = self._pack_buffers = struct.Struct("")
        self._useless = False

    def message(self, batch: pa.RecordBatch) -> IpcMessage:
        """The batch's message; its body is the one that the batch lies in, or a copy."""
        if self._useless or batch.get_total_buffer_size() < SMALL_BYTES:
            return IpcMessage.serialized(batch)
        numbers = body_numbers(batch)
        if numbers is None:
            return IpcMessage.serialized(batch)
        if self._metadata is None:
            return self._learn(batch, numbers)
        return self._filled_in(numbers)

    def _learn(self, batch: pa.RecordBatch, numbers: _Numbers) -> IpcMessage:
        """Serialise the first batch, and take its metadata if they are understood."""
        message = IpcMessage.serialized(batch)
        whole = memoryview(message.body)
        size = _PREFIX_BYTES + _I32.unpack_from(whole, 4)[0]
        metadata = bytes(whole[:size])
        if _has_more(batch.schema) or not self.understands(metadata, numbers, message.size - size):
            self._useless = True
        else:
            self._metadata = metadata  # last: another thread may see it from now on
        return message

    def understands(self, metadata: bytes, numbers: _Numbers, body_bytes: int) -> bool:
        """Find the places of a batch's numbers; return whether just these stand there."""
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
        except struct.error:  # an offset leads elsewhere: another layout than is known here
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


def keeps_more(batch: pa.RecordBatch, nbytes: int) -> bool:
    """Whether the batch keeps much more memory than the ``nbytes`` that are counted for it.

    A column may be a piece of a message's body, and that of all that came with the message.
    """
    kept: dict[int, int] = {}
    for column in batch.columns:
        # All of them: a column that was converted may have new values and the nulls that came.
        for buffer in column.buffers():
            if buffer is not None:
                while (whole := buffer.parent) is not None:
                    buffer = whole
                kept[buffer.address] = buffer.size
    return _is_wasteful(sum(kept.values()), nbytes)


def _is_wasteful(kept: int, nbytes: int) -> bool:
    return kept - nbytes > WASTE_BYTES + nbytes // 4


def body_numbers(batch: pa.RecordBatch) -> _Numbers | None:
    """Find where the columns lie in one body; None where they do not, or not as IPC wants it.

    They have to lie one behind the other, as Arrow writes them: what two share would count once.
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
    """Whether a type has more in its metadata than one length and its buffers."""
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


def _places(metadata: bytes) -> _Places | None:
    """Find the numbers in a record batch's metadata; None where it has other fields."""
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
    """Follow the offset that stands at this place."""
    return at + int(_U32.unpack_from(data, at)[0])


def _field(data: bytes, table: int, index: int) -> int | None:
    """Find a table's field; None where the table does not have it."""
    vtable = table - _I32.unpack_from(data, table)[0]
    slot = 4 + 2 * index
    if slot >= _U16.unpack_from(data, vtable)[0]:
        return None
    offset = int(_U16.unpack_from(data, vtable + slot)[0])
    return table + offset if offset else None


def _vector(data: bytes, at: int, form: struct.Struct) -> tuple[int, ...] | None:
    """Read a vector of pairs of 64-bit numbers; None where it has not as many as ``form``."""
    if _U32.unpack_from(data, at)[0] * 16 != form.size:
        return None
    return form.unpack_from(data, at + _U32.size)
