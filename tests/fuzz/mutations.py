"""Malformed bytes from valid ones: flipped, cut, doubled, spliced, with extreme numbers.

Pure functions. A list of small edits makes an input out of a seed, so that hypothesis can shrink
a finding to the relevant edits.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import strategies as st

EXTREMES = (
    0,
    1,
    7,
    8,
    255,
    2**15,
    2**16 - 1,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**33,
    2**63 - 1,
    2**64 - 1,
)
TEXTS = (
    b"\xff",
    b"\0" * 8,
    b"[" * 3000,
    b'{"a":' * 3000,
    b"9" * 5000,
    b'"' + b"x" * 9000 + b'"',
    b"1e999",
    b"-1",
    b"null",
    b"\xed\xa0\x80",
    b"\\ud800",
    b"true",
    b"[]",
    b"{}",
    b"\n",
    b",",
    b":",
)


class Edit(NamedTuple):
    """One edit; ``at`` and ``to`` are shares of the length, ``value`` any number."""

    kind: str
    at: float
    to: float
    value: int


def apply(data: bytes, edits: Sequence[Edit], others: Sequence[bytes]) -> bytes:
    """Return the bytes after all edits, in order."""
    for edit in edits:
        data = _KINDS[edit.kind](data, edit, others)
    return data


def _span(data: bytes, edit: Edit) -> tuple[int, int]:
    a, b = int(edit.at * len(data)), int(edit.to * len(data))
    return min(a, b), max(a, b)


def _flip(data: bytes, edit: Edit, _: Sequence[bytes]) -> bytes:
    if not data:
        return data
    out, at = bytearray(data), min(int(edit.at * len(data)), len(data) - 1)
    out[at] ^= 1 << edit.value % 8
    return bytes(out)


def _cut(data: bytes, edit: Edit, _: Sequence[bytes]) -> bytes:
    return data[: int(edit.at * len(data))]


def _drop(data: bytes, edit: Edit, _: Sequence[bytes]) -> bytes:
    start, stop = _span(data, edit)
    return data[:start] + data[stop:]


def _zero(data: bytes, edit: Edit, _: Sequence[bytes]) -> bytes:
    start, stop = _span(data, edit)
    return data[:start] + bytes(stop - start) + data[stop:]


def _double(data: bytes, edit: Edit, _: Sequence[bytes]) -> bytes:
    start, stop = _span(data, edit)
    return data[:stop] + data[start:stop] + data[stop:]


def _number(data: bytes, edit: Edit, _: Sequence[bytes]) -> bytes:
    """Put an extreme number in place of an aligned word."""
    width = (4, 8)[edit.value % 2]
    at = int(edit.at * len(data)) // 4 * 4
    word = struct.pack("<Q", EXTREMES[edit.value // 2 % len(EXTREMES)])[:width]
    return data[:at] + word + data[at + width :]


def _text(data: bytes, edit: Edit, _: Sequence[bytes]) -> bytes:
    start, stop = _span(data, edit)
    kept = stop if edit.value % 2 else start
    return data[:start] + TEXTS[edit.value // 2 % len(TEXTS)] + data[kept:]


def _splice(data: bytes, edit: Edit, others: Sequence[bytes]) -> bytes:
    other = others[edit.value % len(others)]
    return data[: int(edit.at * len(data))] + other[int(edit.to * len(other)) :]


_KINDS = {
    "flip": _flip,
    "cut": _cut,
    "drop": _drop,
    "zero": _zero,
    "double": _double,
    "number": _number,
    "text": _text,
    "splice": _splice,
}

_edits = st.lists(
    st.builds(
        Edit,
        st.sampled_from(sorted(_KINDS)),
        st.floats(0, 1),
        st.floats(0, 1),
        st.integers(0, 2**16),
    ),
    max_size=5,
)


def mutated(seeds: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Seeds with a few edits, and now and then arbitrary bytes."""
    edited = st.builds(
        lambda seed, edits: apply(seed, edits, seeds), st.sampled_from(seeds), _edits
    )
    return st.one_of(edited, edited, edited, st.binary(max_size=200))
