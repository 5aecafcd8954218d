"""One item is made while the one before it is used, and nothing is left behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist.ahead import one_ahead


@given(st.lists(st.none() | st.integers()))
def test_the_items_come_as_they_are_made(items: list[int | None]) -> None:
    assert list(one_ahead(iter(items))) == items


def test_the_next_one_is_made_meanwhile_and_only_that_one() -> None:
    begun: list[int] = []
    asked_for = [threading.Event() for _ in range(5)]

    def make() -> Iterator[int]:
        for number in range(4):
            begun.append(number)
            asked_for[number].set()
            yield number
        asked_for[4].set()

    items = one_ahead(make())
    for number in range(4):
        assert next(items) == number
        # While this one is in our hands the next one is being made, in another thread.
        assert asked_for[number + 1].wait(20)
        assert begun == list(range(min(number + 2, 4)))


def test_what_making_raises_comes_in_its_turn() -> None:
    def make() -> Iterator[int]:
        yield 1
        raise ValueError("no second one")

    items = one_ahead(make())
    assert next(items) == 1
    with pytest.raises(ValueError, match="no second one"):
        next(items)


def test_whoever_stops_early_leaves_no_thread() -> None:
    before = threading.active_count()
    items = one_ahead(iter(range(100)))
    assert next(items) == 0
    assert threading.active_count() == before + 1
    items.close()
    assert threading.active_count() == before
