"""Records by which the log tells the next start of origins, beside their operations.

    origins payload ─ msgpack [(origin, namespace, table, applied sequence), …]
    opened payload  ─ msgpack [origin, …], all that have a transaction open

Law of this file: pure; anything that does not check out is :class:`DamagedRecord`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from ingester.dml.record import DamagedRecord

# msgspec reports text that is not UTF-8 as Python does.
_UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError)
_encode = msgspec.msgpack.Encoder().encode
_opened_of = msgspec.msgpack.Decoder(list[str]).decode
_origins_of = msgspec.msgpack.Decoder(list[tuple[str, str, str, int]]).decode


def encode_origins(carried: Sequence[tuple[str, str, str, int]]) -> bytes:
    """Encode the payload of an origins record."""
    return _encode(list(carried))


def encode_opened(origins: Sequence[str]) -> bytes:
    """Encode the payload of an opened record."""
    return _encode(list(origins))


def decode_origins(payload: pa.Buffer) -> list[tuple[str, str, str, int]]:
    """Read an origins record."""
    try:
        return _origins_of(payload)
    except _UNDECODABLE as exc:
        raise DamagedRecord(f"origins record does not decode: {exc}") from exc


def decode_opened(payload: pa.Buffer) -> list[str]:
    """Read an opened record."""
    try:
        return _opened_of(payload)
    except _UNDECODABLE as exc:
        raise DamagedRecord(f"opened record does not decode: {exc}") from exc
