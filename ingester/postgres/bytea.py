"""The texts of ``bytea``, as ``bytea_output = hex`` writes them, as bytes.

    \\x00ff    two digits a byte

Law of this file: pure; what is no such text is refused. Small texts are read all at once.
"""

from __future__ import annotations

import binascii

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_HEX_PREFIX = b"\\x"
_LARGE_BYTES = 512
"""The mean length of texts from which on one call for each is faster than one for all."""
_NO_DIGIT = 255
_DIGITS = np.full(256, _NO_DIGIT, np.uint8)
for _value, _digit in enumerate("0123456789abcdef"):
    _DIGITS[ord(_digit)] = _DIGITS[ord(_digit.upper())] = _value


def bytes_of(texts: pa.Array) -> pa.Array:
    """The bytes of texts, an array of binary; ``ArrowInvalid`` where one is no such text."""
    if not len(texts):
        return pa.array([], pa.binary())
    there = texts.is_valid() if texts.null_count else None
    if there is not None:
        texts = pc.fill_null(texts, _HEX_PREFIX)
    if not pc.all(pc.starts_with(texts, _HEX_PREFIX)).as_py():
        raise pa.ArrowInvalid("is no hex format of bytea")
    found = _bytes_singly(texts) if _are_large(texts) else _bytes_at_once(texts)
    return found if there is None else pc.if_else(there, found, pa.scalar(None, pa.binary()))


def _are_large(texts: pa.Array) -> bool:
    return int(pc.sum(pc.binary_length(texts)).as_py() or 0) > _LARGE_BYTES * len(texts)


def _bytes_singly(texts: pa.Array) -> pa.Array:
    try:
        values = [binascii.unhexlify(memoryview(text.as_buffer())[2:]) for text in texts]
    except binascii.Error as exc:
        raise pa.ArrowInvalid(f"is no bytea: {exc}") from exc
    ends = np.cumsum([0, *map(len, values)], dtype=np.int32)
    # A lone value is not copied.
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def _bytes_at_once(texts: pa.Array) -> pa.Array:
    """The same over pairs of digits; the first pair of each text is the prefix."""
    _, offsets_buffer, data = texts.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    digits = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    offsets = offsets - offsets[0]
    if (offsets & 1).any():
        raise pa.ArrowInvalid("is no bytea: an odd number of digits")
    pairs = _DIGITS[digits].reshape(-1, 2)
    prefixes = offsets[:-1] >> 1
    pairs[prefixes] = 0
    if (pairs == _NO_DIGIT).any():
        raise pa.ArrowInvalid("is no bytea: it has other characters than digits")
    values = np.delete(pairs[:, 0] << 4 | pairs[:, 1], prefixes)
    ends = (offsets >> 1) - np.arange(len(offsets), dtype=np.int32)
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.binary(), len(texts), buffers)
