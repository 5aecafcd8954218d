"""Encoding and decoding of protobuf messages whose fields are varints, bytes or messages.

    message   { key value }          key     varint: 8 times the field number + wire type
    value     varint (type 0) | 8 bytes (1) | varint length, that many bytes (2) | 4 bytes (5)

Used for the messages of Flight SQL and of Substrait, which have no maintained library that comes
without generated classes. Unknown fields are returned like others, so a caller can skip them.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterator

Value = int | bytes
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10
_MAX_NUMBER = (1 << 29) - 1


class BadMessage(ValueError):
    """Bytes that are not a protobuf message; the text says where."""


def fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """Yield each field's number and value, in order.

    Returns:
        An int for a varint, unsigned (see :func:`signed`); bytes for everything else. Fixed-width
        values are little-endian.

    Raises:
        BadMessage: the bytes end too early, or have a number of a field or a wire type that does
            not exist.
    """
    at, end = 0, len(message)
    while at < end:
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if not 0 < number <= _MAX_NUMBER:
            raise BadMessage(f"{number} before byte {at} is not the number of a field")
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind == _BYTES:
            size, at = _varint(message, at)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise BadMessage(f"field {number} at byte {at} has the unknown wire type {kind}")
        if at + size > end:
            raise BadMessage(f"field {number} has {size} bytes, {end - at} are left")
        yield number, message[at : at + size]
        at += size


def packed_varints(data: bytes) -> Iterator[int]:
    """Yield the integers of a packed repeated field, unsigned.

    Raises:
        BadMessage: the bytes end inside a number.
    """
    at = 0
    while at < len(data):
        value, at = _varint(data, at)
        yield value


def signed(value: int) -> int:
    """Return a varint as the signed 64-bit integer that it encodes (int32, int64, enum)."""
    return value - (1 << 64) if value >= 1 << 63 else value


def varint_field(number: int, value: int) -> bytes:
    """Return a field with an integer or a bool; negative ones take ten bytes."""
    return _encoded(number << 3 | _VARINT) + _encoded(value & ((1 << 64) - 1))


def bytes_field(number: int, value: bytes | str) -> bytes:
    """Return a field with bytes, a text or an encoded message."""
    data = value.encode() if isinstance(value, str) else value
    return _encoded(number << 3 | _BYTES) + _encoded(len(data)) + data


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        if at + index >= len(message):
            raise BadMessage(f"the message ends inside a number at byte {at}")
        byte = message[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if value >= 1 << 64:
                raise BadMessage(f"the number at byte {at} has more than 64 bits")
            return value, at + index + 1
    raise BadMessage(f"the number at byte {at} has more than {_MAX_VARINT_BYTES} bytes")


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
