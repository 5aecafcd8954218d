"""The encoding of states, and the groups not flushed yet."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ingester.followers.errors import StateDamaged
from ingester.followers.state import (
    CopySelection,
    FeedPosition,
    FollowedGroup,
    FollowState,
    Ledger,
    decode_state,
    encode_state,
    part_name,
)

VALUES = st.tuples(st.one_of(st.none(), st.booleans(), st.integers(0, 9), st.text(max_size=3)))
PARTITIONS = st.tuples(st.integers(1, 2), VALUES)
NUMBERS = st.integers(0, 2**62)
STATES = st.builds(
    FollowState,
    namespace=st.text(),
    table=st.text(),
    table_version=NUMBERS,
    ingester_id=st.text(),
    selection=st.builds(
        CopySelection,
        st.text(),
        st.none() | st.lists(st.text()).map(tuple),
        st.none() | st.text(),
    ),
    version=NUMBERS,
    uid=st.text(),
    position=st.none() | st.builds(FeedPosition, NUMBERS, NUMBERS),
    filled=st.none() | NUMBERS,
    complete=st.booleans(),
    floor=st.none() | st.builds(FeedPosition, NUMBERS, NUMBERS),
)


@given(STATES, st.lists(st.tuples(PARTITIONS, st.integers(1, 2), st.none() | NUMBERS), max_size=8))
def test_what_was_encoded_is_decoded(
    state: FollowState, shapes: list[tuple[tuple[int, tuple[object, ...]], int, int | None]]
) -> None:
    groups = [
        FollowedGroup((key[0], key[1]), epoch, at * 10, at * 10 + 5, at, at, buffer)  # type: ignore[arg-type]
        for at, (key, epoch, buffer) in enumerate(shapes, 1)
    ]
    found, ledger = decode_state(encode_state(state, groups))
    assert found == state
    assert sorted(ledger, key=lambda group: group.at) == groups


@given(STATES, st.data())
def test_no_byte_of_it_can_change_unnoticed(state: FollowState, data: st.DataObject) -> None:
    encoded = encode_state(state)
    place = data.draw(st.integers(0, len(encoded) - 1))
    changed = bytes([encoded[place] ^ data.draw(st.integers(1, 255))])
    with pytest.raises(StateDamaged):
        decode_state(encoded[:place] + changed + encoded[place + 1 :])
    with pytest.raises(StateDamaged):
        decode_state(encoded[:place])


@given(PARTITIONS, PARTITIONS)
def test_two_partitions_never_have_one_name(
    one: tuple[int, tuple[object, ...]], other: tuple[int, tuple[object, ...]]
) -> None:
    same = repr(one) == repr(other)
    assert (part_name(one) == part_name(other)) == same  # type: ignore[arg-type]


def test_groups_of_one_buffer_are_one_group() -> None:
    ledger, part = Ledger(), (1, ("a",))
    for first, buffer, at in ((1, 1, 1), (3, 1, 9), (5, 5, 9), (7, None, 10), (9, None, 11)):
        group = FollowedGroup(part, 1, first, first + 1, 2, 0, buffer)
        ledger.add(group._replace(at=ledger.number(group, at)))
    assert [(g.first, g.last, g.rows, g.at) for g in ledger] == [
        (1, 4, 4, 1),
        (5, 6, 2, 9),
        (7, 8, 2, 10),
        (9, 10, 2, 11),
    ]
    ledger.drop([group for group in ledger if group.at in (1, 10)])
    assert [group.at for group in ledger] == [9, 11]
    ledger.drop(list(ledger))
    assert not len(ledger) and not ledger.keys()
