"""The next item is prepared while the current one is used; no thread or item outlives the use."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist.prefetch import one_ahead, two_at_once


@given(st.lists(st.none() | st.integers()))
def test_items_come_in_the_order_they_are_made(items: list[int | None]) -> None:
    assert list(one_ahead(iter(items))) == items


def test_exactly_one_item_is_made_ahead() -> None:
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
        # While this item is in use, another thread prepares the next one.
        assert asked_for[number + 1].wait(20)
        assert begun == list(range(min(number + 2, 4)))


def test_an_exception_from_making_an_item_is_raised_in_order() -> None:
    def make() -> Iterator[int]:
        yield 1
        raise ValueError("no second one")

    items = one_ahead(make())
    assert next(items) == 1
    with pytest.raises(ValueError, match="no second one"):
        next(items)


def test_stopping_early_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    items = one_ahead(iter(range(100)))
    assert next(items) == 0
    (ours,) = set(threading.enumerate()) - before
    items.close()
    assert not ours.is_alive()


def test_two_jobs_are_done_at_once_and_come_in_order() -> None:
    both = threading.Barrier(2)

    def job(number: int) -> int:
        both.wait(20)
        return number

    before = set(threading.enumerate())
    assert list(two_at_once(partial(job, number) for number in range(6))) == [*range(6)]
    # Those of other tests' libraries may end meanwhile.
    assert set(threading.enumerate()) <= before
    assert list(two_at_once(iter(()))) == []


def test_at_most_two_jobs_are_started_or_held() -> None:
    begun: list[int] = []

    def job(number: int) -> int:
        begun.append(number)
        return number

    jobs = two_at_once(partial(job, number) for number in range(6))
    assert next(jobs) == 0
    assert set(begun) <= {0, 1}
    jobs.close()
    assert set(begun) <= {0, 1}


def test_an_exception_of_a_job_is_raised_in_its_place() -> None:
    def job(number: int) -> int:
        return 1 // (number - 2)

    jobs = two_at_once(partial(job, number) for number in range(6))
    assert [next(jobs), next(jobs)] == [-1, -1]
    with pytest.raises(ZeroDivisionError):
        next(jobs)
    assert list(jobs) == []
