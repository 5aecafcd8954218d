"""The ledger of a keyed table accepts right answers and reports wrong ones."""

from __future__ import annotations

import pytest

from tests.show.ledger import KEPT, Ledger


def a_ledger() -> Ledger:
    """Keys 1 to 3 were written, then 2 deleted; the third step is not acknowledged yet."""
    ledger = Ledger()
    ledger.begin({1: 10, 2: 10, 3: 10})
    ledger.acknowledge(ledger.begin({1: 20, 2: None}))
    ledger.begin({1: 30, 4: 30})
    return ledger


@pytest.mark.parametrize(
    "found", [{1: 20, 3: 10}, {1: 30, 3: 10}, {1: 20, 3: 10, 4: 30}, {1: 30, 3: 10, 4: 30}]
)
def test_an_answer_may_have_what_was_sent_and_has_what_was_acknowledged(
    found: dict[int, int],
) -> None:
    assert a_ledger().wrong(found.items(), since=2) == []


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ([(1, 10), (3, 10)], "key 1 is 10 and should be 20, 30"),
        ([(1, 20)], "key 3 is gone and should be 10"),
        ([(1, 20), (2, 10), (3, 10)], "key 2 is 10 and should be gone"),
        ([(1, 20), (3, 10), (3, 10)], "key 3 is there twice: 10 and 10"),
        ([(1, 20), (3, 10), (9, 1)], "key 9 is there, and was never sent"),
        ([(1, 40), (3, 10)], "key 1 is 40 and should be 20, 30"),
    ],
)
def test_a_key_that_is_lost_doubled_late_or_back_is_noticed(
    found: list[tuple[int, int]], told: str
) -> None:
    assert told in a_ledger().wrong(found, since=2)


def test_who_asked_too_long_ago_judges_nothing() -> None:
    ledger = Ledger()
    for value in range(KEPT + 10):
        ledger.acknowledge(ledger.begin({1: value}))
    assert ledger.wrong([(1, 5)], since=5) == []
    assert ledger.wrong([(1, 5)], since=KEPT) != []
    assert ledger.now() == {1: KEPT + 9}
