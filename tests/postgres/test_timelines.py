"""Two histories of a log agree up to the first point where only one of them branches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingester.postgres.server_errors import SourceFailed
from ingester.postgres.states import History
from ingester.postgres.timelines import KEPT, kept, parse_history, shared_upto


@pytest.mark.parametrize(
    ("one", "other", "upto"),
    [
        (((1, 0),), ((1, 0),), None),
        (((1, 0),), ((1, 0), (2, 70)), 70),
        (((1, 0), (2, 70)), ((1, 0), (2, 70), (3, 90)), 90),
        (((1, 0), (2, 70), (3, 90)), ((1, 0), (2, 70), (3, 90)), None),
        # Two standbys were promoted to the same timeline at different positions.
        (((1, 0), (2, 70)), ((1, 0), (2, 60)), 60),
        (((1, 0), (2, 70)), ((1, 0), (3, 80)), 70),
        # The second branch left the first timeline before the known one did.
        (((1, 0), (2, 70), (3, 90)), ((1, 0), (4, 50)), 50),
        # A state keeps only the newest timelines; a server may have lost its history file.
        (((5, 70), (6, 90)), ((1, 0), (2, 10), (5, 70), (6, 90), (7, 95)), 95),
        (((1, 0), (2, 70)), ((2, 0),), 0),
        ((), ((1, 0),), 0),
    ],
)
def test_histories_agree_upto(one: History, other: History, upto: int | None) -> None:
    assert shared_upto(one, other) == upto
    assert shared_upto(other, one) == upto


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), max_size=12))
def test_a_history_agrees_with_its_past(steps: list[tuple[int, int]]) -> None:
    """Promotions at growing positions; a standby lags at most behind the newest branch point."""
    history: History = ((1, 0),)
    for skipped, grown in steps:
        number, begins = history[-1]
        later = (*history, (number + 1 + skipped, begins + grown))
        assert shared_upto(history, later) == begins + grown
        assert shared_upto(kept(history), later) == begins + grown
        assert shared_upto(later, later) is None
        history = later
    assert len(kept(history)) <= KEPT


def test_a_history_file_is_read() -> None:
    text = "1\t0/3000148\tno recovery target specified\n\n# a comment\n2\t1/A0\tat 'a\tb'\n"
    history = ((1, 0), (2, 0x3000148), (4, (1 << 32) + 0xA0))
    assert parse_history(4, text) == history
    assert parse_history(4, memoryview(text.encode())) == history
    assert parse_history(4, b"") == ((4, 0),)
    for damaged in ("1\n", "one\t0/1\tx\n", "1\tzero\tx\n"):
        with pytest.raises(SourceFailed, match="history of timeline 4 cannot be read"):
            parse_history(4, damaged)
