"""The protobuf codec gives back what it has encoded, and refuses everything else by name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingester.protobuf import (
    BadMessage,
    Value,
    bytes_field,
    fields,
    packed_varints,
    signed,
    varint_field,
)

MOST = (1 << 64) - 1
NUMBERS = st.integers(1, (1 << 29) - 1)
FIELDS = st.lists(
    st.tuples(NUMBERS, st.integers(-(1 << 63), MOST) | st.binary(max_size=300) | st.text()),
    max_size=20,
)


def encoded(given: list[tuple[int, Any]]) -> bytes:
    return b"".join(
        varint_field(number, value) if isinstance(value, int) else bytes_field(number, value)
        for number, value in given
    )


def decoded(message: bytes) -> list[tuple[int, Value]] | None:
    try:
        return list(fields(message))
    except BadMessage:
        return None


@given(FIELDS)
def test_fields_come_back_in_order(sent: list[tuple[int, Any]]) -> None:
    found = list(fields(encoded(sent)))
    assert [number for number, _ in found] == [number for number, _ in sent]
    for (_, value), (_, wanted) in zip(found, sent, strict=True):
        if isinstance(wanted, int):
            assert isinstance(value, int)
            assert 0 <= value <= MOST
            assert value == wanted if wanted >= 0 else signed(value) == wanted
        else:
            assert value == (wanted.encode() if isinstance(wanted, str) else wanted)


@given(FIELDS, st.data())
def test_a_message_that_is_cut_gives_whole_fields_and_then_a_refusal(
    sent: list[tuple[int, Any]], data: st.DataObject
) -> None:
    message = encoded(sent)
    ends = [len(encoded(sent[:count])) for count in range(len(sent) + 1)]
    cut = data.draw(st.integers(0, len(message)))
    found: list[tuple[int, Value]] = []
    ended = True
    try:
        found.extend(fields(message[:cut]))
    except BadMessage:
        ended = False
    assert ended == (cut in ends)
    if ended:
        assert found == list(fields(message))[: ends.index(cut)]


@given(st.binary(max_size=200))
def test_any_bytes_are_fields_or_refused(message: bytes) -> None:
    found = decoded(message)
    if found is None:
        return
    for number, value in found:
        assert 1 <= number < 1 << 29
        assert isinstance(value, bytes) or 0 <= value <= MOST
    # What it means is what a second look at it means, in its shortest form.
    if all(isinstance(value, int) for _, value in found):
        assert decoded(encoded(found)) == found


@given(st.binary(max_size=100), st.integers(0, 99), st.integers(0, 255))
def test_a_changed_byte_never_raises_another_error(rest: bytes, at: int, byte: int) -> None:
    message = bytearray(encoded([(1, "a text"), (2, 1 << 40), (300, rest)]))
    message[at % len(message)] = byte
    decoded(bytes(message))


@given(st.lists(st.integers(0, MOST)), st.data())
def test_packed_integers_come_back_and_are_refused_when_cut(
    values: list[int], data: st.DataObject
) -> None:
    key = len(varint_field(1, 0)) - 1
    each = [varint_field(1, value)[key:] for value in values]
    whole = b"".join(each)
    assert list(packed_varints(whole)) == values
    cut = data.draw(st.integers(0, len(whole)))
    ends = [sum(map(len, each[:count])) for count in range(len(each) + 1)]
    if cut not in ends:
        with pytest.raises(BadMessage, match="ends inside a number"):
            list(packed_varints(whole[:cut]))


HOSTILE = {
    "field number 0": b"\x00\x01",
    "a number beyond 29 bits": b"\x80\x80\x80\x80\x10\x01",
    "a group": b"\x0b\x0c",
    "wire type 6": b"\x0e",
    "wire type 7": b"\x0f",
    "a number of 11 bytes": b"\x08" + b"\x80" * 10 + b"\x01",
    "a number beyond 64 bits": b"\x08" + b"\xff" * 9 + b"\x02",
    "an endless number": b"\x08" + b"\xff" * 1000,
    "an endless key": b"\xff" * 1000,
    "a length beyond the end": b"\x0a\x02a",
    "a length of 2^64 - 1": b"\x0a" + b"\xff" * 9 + b"\x01",
    "four bytes that end early": b"\x0d\x00\x00\x00",
    "eight bytes that end early": b"\x09" + b"\x00" * 7,
}


@pytest.mark.parametrize("message", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_bytes_are_refused(message: bytes) -> None:
    with pytest.raises(BadMessage):
        list(fields(message))


def test_known_encodings_of_the_specification() -> None:
    assert varint_field(1, 150) == bytes.fromhex("089601")
    assert bytes_field(2, "testing") == bytes.fromhex("120774657374696e67")
    assert varint_field(1, -2) == bytes.fromhex("08feffffffffffffffff01")
    assert list(fields(bytes.fromhex("0d01000000") + bytes.fromhex("110200000000000000"))) == [
        (1, b"\x01\x00\x00\x00"),
        (2, b"\x02\x00\x00\x00\x00\x00\x00\x00"),
    ]
